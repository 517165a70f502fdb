"""What a plan was compared with, and plans for workload files, as rich tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from autosplit.baselines import Comparison
from autosplit.readers import WorkloadPlan
from autosplit.report.bars import bar, heat
from autosplit.report.styles import GOOD, HOT, STRONG
from autosplit.report.tables import facts, grid, proof, remarks
from autosplit.search import Candidate
from autosplit.types import Plan
from autosplit.units import format_bytes, format_seconds


def search_tables(candidates: Sequence[Candidate], top: int = 10) -> list[RenderableType]:
    """Return the best configurations, and why the others lost."""
    if not candidates:
        return []
    possible = [candidate for candidate in candidates if candidate.plan is not None]
    table = grid(f"Best {min(top, len(possible))} of {len(candidates)} configurations")
    if left := len(candidates) - len(possible):
        table.caption = f"{left} have no plan; --json says why"
    for heading in ("stages", "replicas", "schedule", "micro-batches"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("rows/s", justify="right", no_wrap=True)
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("why not", overflow="fold")
    for place, candidate in enumerate(possible[:top]):
        request = candidate.request
        table.add_row(
            str(request.stages),
            str(request.replicas),
            request.schedule,
            f"{request.microbatches} × {candidate.microbatch_size}",
            f"{candidate.samples_per_s:.4g}",
            format_bytes(candidate.memory_bytes),
            Text(candidate.reason),
            style=STRONG if place == 0 else "",
        )
    return ["", table]


def baseline_tables(plan: Plan, baselines: Sequence[Comparison]) -> list[RenderableType]:
    """Return what plans made by hand would cost on the same model, against this one."""
    if not baselines:
        return []
    table = grid("Against plans made by hand")
    table.add_column("", no_wrap=True)
    for heading in ("step", "ratio", "bottleneck", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    table.add_row(
        "this plan",
        format_seconds(plan.step_s),
        "1.00×",
        format_seconds(plan.bottleneck_s),
        format_bytes(_fullest_bytes(plan)),
        Text("yes", style=GOOD),
    )
    for each in baselines:
        table.add_row(
            each.name,
            format_seconds(each.step_s),
            f"{each.step_s / plan.step_s:.2f}×" if plan.step_s else "-",
            format_seconds(each.bottleneck_s),
            format_bytes(each.memory_bytes),
            Text("yes" if each.fits else "no", style=GOOD if each.fits else HOT),
        )
    return ["", table]


def _fullest_bytes(plan: Plan) -> int:
    """Return the memory of the fullest rank, which holds all stages on it."""
    held: dict[int, int] = defaultdict(int)
    for stage in plan.stages:
        held[stage.rank] += stage.memory.total_bytes
    return max(held.values())


def workload_tables(plan: WorkloadPlan) -> list[RenderableType]:
    """Return where the nodes of a workload file go."""
    largest = plan.bottleneck_s or 1.0
    table = grid("Devices, for one sample")
    table.add_column("", no_wrap=True)
    table.add_column("nodes", justify="right")
    table.add_column("load", no_wrap=True)
    for heading in ("", "compute", "transfers", "memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    for stage in plan.stages:
        compute_s = stage.forward_s + stage.backward_s
        load_s = compute_s + stage.communication_s
        table.add_row(
            Text(stage.device),
            str(len(stage.layers)),
            bar(load_s / largest, 8),
            Text(format_seconds(load_s), style=heat(load_s / largest)),
            format_seconds(compute_s),
            format_seconds(stage.communication_s),
            format_bytes(stage.memory_bytes),
        )
    head = facts(
        [
            ("workload", Text(plan.name)),
            ("bottleneck", Text(format_seconds(plan.bottleneck_s), style=STRONG)),
            ("proof", proof(plan)),
        ]
    )
    return [head, "", table, *remarks(plan.notes)]
