"""A plan and the files of its export as tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autosplit.constraints import spelled
from autosplit.readers import WorkloadPlan
from autosplit.report.bars import bar, heat
from autosplit.report.paths import summarize
from autosplit.report.styles import GOOD, STRONG, WARM
from autosplit.report.tables import count, facts, grid, model_name, remarks
from autosplit.types import ExportedStage, Plan, StagePlan
from autosplit.units import format_bytes, format_rate, format_seconds, format_share


def plan_tables(plan: Plan) -> list[RenderableType]:
    """Return a plan's promise, its stages with bars, and its remarks."""
    tables: list[RenderableType] = [facts(_plan_facts(plan)), "", _stages(plan)]
    if _several(plan):
        tables += ["", _devices(plan)]
    return [*tables, *remarks(plan.notes)]


def _several(plan: Plan) -> bool:
    """Return whether a device runs several stages."""
    return len(plan.memory_by_rank) < len(plan.stages)


def _plan_facts(plan: Plan) -> list[tuple[str, RenderableType]]:
    request = plan.request
    speedup = plan.single_s / plan.step_s if plan.step_s else 1.0
    cluster = request.cluster
    link = "free"
    if cluster and cluster.has_links:
        link = "by pair, as the cluster says"
    elif request.link_bytes_per_s:
        link = format_rate(request.link_bytes_per_s)
    if request.latency_s:
        link += f", {format_seconds(request.latency_s)} latency"
    if request.link_assumed:
        link += " (assumed: give --bandwidth and --latency)"
    if request.overlap:
        link += ", beside compute"
    wishes = ", ".join(text for text, _ in spelled(request))
    return [
        ("model", Text(model_name(plan.model))),
        ("pipeline", _pipeline(plan)),
        *([("wishes", Text(wishes))] if wishes else []),
        ("micro-batches", f"{request.microbatches} a step"),
        ("links", link),
        (
            "step",
            Text.assemble(
                (format_seconds(plan.step_s), STRONG),
                f" predicted, {speedup:.2f}× one device ({format_seconds(plan.single_s)})",
            ),
        ),
        ("proof", proof(plan)),
    ]


def _pipeline(plan: Plan) -> str:
    request = plan.request
    parts = [count(len(plan.stages), "stage")]
    ranks = len({stage.rank for stage in plan.stages})
    if ranks != len(plan.stages):
        parts.append(count(ranks, "device"))
    if request.replicas > 1:
        divided = " (FSDP)" if request.sharding == "fsdp" else ""
        parts.append(f"{request.replicas} replicas{divided}")
    if len(plan.stages) > 1:
        parts.append(request.schedule)
    return ", ".join(parts)


_STOPPED = {
    "time": "the time limit was reached",
    "gap": "the gap that was asked for was reached",
    "size": "what is left is too large for the solvers in this time",
    "memory": "the solvers' best plan holds memory that they do not count, this one fits",
    "chunks": "with several stages on a device only a bound for equal loads is known",
    "simulation": "another plan is better by the formula, this one when its step is played through",
}
"""Why a plan is not proven, by ``Plan.stopped``."""


def proof(plan: Plan | WorkloadPlan) -> Text:
    """Return how good a plan is known to be, by whom and in what time."""
    proven = plan.status == "optimal"
    words = "proven optimal" if proven else "not proven"
    objective = plan.objective_s if isinstance(plan, Plan) else plan.bottleneck_s
    bound = f"(objective = bound = {format_seconds(plan.bound_s)})"
    if plan.gap:
        bound = (
            f"(objective {format_seconds(objective)}, bound {format_seconds(plan.bound_s)}, "
            f"gap {format_share(plan.gap)})"
        )
    text = f" by {plan.solver} in {format_seconds(plan.solver_s)} {bound}"
    if isinstance(plan, Plan) and plan.stopped:
        text += f": {_STOPPED[plan.stopped]}"
    return Text.assemble((words, GOOD if proven else WARM), text)


def stage_s(stage: StagePlan) -> float:
    """Return forward plus backward seconds of a stage."""
    return stage.forward_s + stage.backward_s


def bottleneck(plan: Plan) -> int:
    """Return the index of the stage that takes longest, transfers included."""
    loads = [stage_s(stage) + stage.send_s for stage in plan.stages]
    return loads.index(max(loads))


def _stages(plan: Plan) -> Table:
    slowest = bottleneck(plan)
    largest = stage_s(plan.stages[slowest]) or 1.0
    # A budget is that of a device, which here runs one stage.
    budget = None if _several(plan) else plan.request.memory_bytes
    most = budget or max(stage.memory.total_bytes for stage in plan.stages) or 1
    table = grid("Stages, for one micro-batch")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("layers", overflow="fold")
    placed = any(stage.device for stage in plan.stages)
    if placed:
        table.add_column("device", no_wrap=True)
    table.add_column("time", no_wrap=True)
    for heading in ("", "idle"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        seconds = stage_s(stage)
        held = stage.memory.total_bytes
        table.add_row(
            Text(f"▶ {index}" if index == slowest else str(index), style=STRONG),
            Text(", ".join(summarize(stage.layers, plan.order))),
            *([Text(stage.device or "-")] if placed else []),
            bar(seconds / largest, 8),
            Text(format_seconds(seconds), style=heat(seconds / largest)),
            format_share(stage.idle),
            bar(held / most, 6),
            format_bytes(held),
        )
    table.caption = "▶ the bottleneck" + (f"; budget {format_bytes(budget)}" if budget else "")
    return table


def _devices(plan: Plan) -> Table:
    """Return what each device holds, over all of its stages."""
    budget = plan.request.memory_bytes
    held = plan.memory_by_rank
    most = budget or max(held) or 1
    table = grid("Devices, each with several stages")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("stages", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("memory", no_wrap=True)
    table.add_column("", justify="right", no_wrap=True)
    for rank, nbytes in enumerate(held):
        stages = [index for index, stage in enumerate(plan.stages) if stage.rank == rank]
        table.add_row(
            str(rank),
            ", ".join(map(str, stages)),
            format_seconds(sum(stage_s(plan.stages[index]) for index in stages)),
            bar(nbytes / most, 6),
            format_bytes(nbytes),
        )
    if budget:
        table.caption = f"budget {format_bytes(budget)}"
    return table


def memory_table(plan: Plan) -> Table:
    """Return what each stage's memory is used for."""
    table = grid("Memory of each stage")
    uses = ("weights", "grads", "optim", "saved", "cuts", "scratch")
    for heading in ("stage", *uses, "total"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        memory = stage.memory
        table.add_row(
            str(index),
            format_bytes(memory.parameters_bytes),
            format_bytes(memory.gradients_bytes),
            format_bytes(memory.optimizer_bytes),
            format_bytes(memory.activations_bytes),
            format_bytes(memory.boundary_bytes),
            format_bytes(memory.workspace_bytes),
            Text(format_bytes(memory.total_bytes), style=STRONG),
        )
    return table


def time_table(plan: Plan) -> Table:
    """Return what each stage's time is used for, for one micro-batch."""
    table = grid("Time of each stage, for one micro-batch")
    for heading in ("stage", "rank", "device", "forward", "backward", "send", "idle", "in flight"):
        table.add_column(heading, justify="right", no_wrap=True)
    for index, stage in enumerate(plan.stages):
        table.add_row(
            str(index),
            str(stage.rank),
            Text(stage.device or "-"),
            format_seconds(stage.forward_s),
            format_seconds(stage.backward_s),
            format_seconds(stage.send_s),
            format_share(stage.idle),
            str(stage.in_flight),
        )
    return table


def export_table(stages: Sequence[ExportedStage]) -> Table:
    """Return the files of an export, and what goes in and out of each stage."""
    table = grid("Files of each stage")
    for heading in ("stage", "lines", "weights", "rewrites"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("takes", overflow="fold")
    table.add_column("gives", overflow="fold")
    for stage in stages:
        table.add_row(
            str(stage.index),
            str(stage.lines),
            format_bytes(stage.weights_bytes),
            str(stage.rewrites),
            Text(", ".join(stage.take)),
            Text(", ".join(stage.give)),
        )
    return table
