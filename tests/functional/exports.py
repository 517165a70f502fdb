"""Export a model without measuring it: layers divided evenly by number."""

from __future__ import annotations

from pathlib import Path

from autosplit import codegen, layers, stages, weights
from autosplit.modelspec import load_model
from autosplit.program import Program
from autosplit.serialize import digest
from autosplit.targets import TARGETS
from autosplit.tracers import trace
from autosplit.types import ModelRef, Plan, PlanRequest, StageMemory, StagePlan


def even_plan(ref: ModelRef, program: Program, count: int) -> Plan:
    """Return a plan of ``count`` stages with as many layers each."""
    found = layers.group(program).layers
    split = [
        tuple(layer.name for i, layer in enumerate(found) if i * count // len(found) == stage)
        for stage in range(count)
    ]
    return Plan(
        model=ref,
        fingerprint=digest(program),
        profile_digest="0",
        request=PlanRequest(stages=count, microbatches=4),
        order=tuple(layer.name for layer in found),
        stages=tuple(
            StagePlan(names, stage, None, 0.0, 0.0, 0.0, 1, StageMemory(), 0.0)
            for stage, names in enumerate(split)
        ),
        status="feasible",
        solver="none",
        objective_s=0.0,
        bottleneck_s=0.0,
        bound_s=0.0,
        gap=0.0,
        solver_s=0.0,
        step_s=0.0,
        single_s=0.0,
        nodes=tuple(layer.nodes for layer in found),
    )


def export(spec: str, count: int, folder: Path, *, batch_size: int | None = None) -> Plan:
    """Write an export of ``count`` stages; return its plan."""
    ref = ModelRef(spec, batch_size=batch_size)
    traced = trace(load_model(ref))
    plan = even_plan(ref, traced.program, count)
    specs, routing = stages.split(traced.program, plan.stage_of_node, count)
    sources = codegen.generate(traced.program, specs)
    artifacts = TARGETS["torch"].emit(plan, traced.program, routing, sources)
    weights.write_export(folder, artifacts, traced, routing)
    return plan
