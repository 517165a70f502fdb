"""Profiles and plans as JSON for programs: stable keys, a unit in every name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from autosplit.baselines import Comparison
from autosplit.readers import WorkloadPlan
from autosplit.report.advice import advise, precision, total_s
from autosplit.search import Candidate
from autosplit.serialize import to_data
from autosplit.types import ExportedStage, Plan, Profile, VerificationReport

VERSION = (1, 0)


def to_text(data: dict[str, Any]) -> str:
    """Return report data as readable JSON."""
    return json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)


def profile_data(profile: Profile) -> dict[str, Any]:
    """Return a profile's totals and its layers."""
    forward_s = sum(layer.forward.median_s for layer in profile.layers)
    return {
        **_head("profile"),
        "model": to_data(profile.model),
        "device": to_data(profile.device),
        "sizes": dict(profile.sizes),
        "training": profile.training,
        "forward_s": forward_s,
        "backward_s": total_s(profile) - forward_s,
        "whole": to_data(profile.whole),
        "calibration": to_data(profile.calibration),
        "precision": precision(profile),
        "modelled": profile.device.clock == "model",
        "cache_bytes": sum(layer.cache_bytes for layer in profile.layers),
        "sweep": [dict(point.sizes) for point in profile.sweep],
        "param_bytes": sum(s.nbytes for s in profile.states if s.kind == "parameter"),
        "saved_bytes": sum(storage.nbytes for storage in profile.storages),
        "layers": [
            {
                "name": layer.name,
                "structure": layer.structure,
                "forward_s": layer.forward.median_s,
                "forward_spread_s": layer.forward.spread_s,
                "backward_s": layer.backward.median_s,
                "backward_spread_s": layer.backward.spread_s,
                "weight_gradient_s": layer.weight_gradient_s,
                "source": layer.source,
                "workspace_bytes": layer.workspace_bytes,
                "flops": layer.flops,
            }
            for layer in profile.layers
        ],
        "notes": [*profile.notes, *advise(profile)],
    }


def plan_data(
    plan: Plan,
    candidates: Sequence[Candidate] = (),
    baselines: Sequence[Comparison] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a plan's promise and its stages, and what it was compared with."""
    compared: dict[str, Any] = {}
    if candidates:
        compared["candidates"] = [_candidate(candidate) for candidate in candidates]
        compared["left_out"] = list(left_out)
    if baselines:
        compared["baselines"] = to_data(tuple(baselines))
    return {
        **_head("plan"),
        "model": to_data(plan.model),
        "request": to_data(plan.request),
        "status": plan.status,
        "objective_s": plan.objective_s,
        "bottleneck_s": plan.bottleneck_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "stopped": plan.stopped,
        "solver": plan.solver,
        "solver_s": plan.solver_s,
        "step_s": plan.step_s,
        "single_s": plan.single_s,
        "stages": [
            {
                "layers": list(stage.layers),
                "rank": stage.rank,
                "device": stage.device,
                "forward_s": stage.forward_s,
                "backward_s": stage.backward_s,
                "send_s": stage.send_s,
                "idle": stage.idle,
                "in_flight": stage.in_flight,
                "memory_bytes": stage.memory.total_bytes,
                "memory": to_data(stage.memory),
                "recompute": list(stage.recompute),
            }
            for stage in plan.stages
        ],
        "notes": list(plan.notes),
        **compared,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    request, plan = candidate.request, candidate.plan
    return {
        "stages": request.stages,
        "ranks": request.ranks,
        "replicas": request.replicas,
        "schedule": request.schedule,
        "devices": candidate.devices,
        "recompute": request.recompute,
        "microbatches": request.microbatches,
        "microbatch_size": candidate.microbatch_size,
        "outcome": candidate.outcome,
        "samples_per_s": candidate.samples_per_s,
        "most_samples_per_s": _finite(candidate.most_samples_per_s),
        "step_s": plan.step_s if plan else None,
        "memory_bytes": candidate.memory_bytes,
        "reason": candidate.reason,
    }


def _finite(value: float) -> float | None:
    """Return a number that JSON can hold, else None."""
    return value if math.isfinite(value) else None


def workload_data(plan: WorkloadPlan) -> dict[str, Any]:
    """Return where the nodes of a workload file go, and what that promises."""
    return {**_head("workload"), **to_data(plan)}


def export_data(plan: Plan, stages: Sequence[ExportedStage]) -> dict[str, Any]:
    """Return the plan of an export and the files of its stages."""
    return {**plan_data(plan), **_head("export"), "files": to_data(tuple(stages))}


def verification_data(report: VerificationReport) -> dict[str, Any]:
    """Return every difference that was found."""
    return {**_head("verification"), "passed": report.passed, **to_data(report)}


def _head(kind: str) -> dict[str, Any]:
    return {"schema": f"autosplit.report.{kind}", "version": list(VERSION)}
