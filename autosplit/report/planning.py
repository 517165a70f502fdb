"""What a plan was compared with, and plans for workload files, as rich tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from autosplit.baselines import Comparison
from autosplit.constraints import spelled
from autosplit.readers import WorkloadPlan
from autosplit.report.bars import bar, heat
from autosplit.report.plans import proof
from autosplit.report.styles import GOOD, HOT, LABEL, STRONG
from autosplit.report.tables import count, facts, grid, remarks
from autosplit.search import Candidate
from autosplit.types import Plan, PlanRequest
from autosplit.units import format_bytes, format_seconds


def search_tables(
    candidates: Sequence[Candidate], left_out: Sequence[str] = (), top: int = 10
) -> list[RenderableType]:
    """Return the best configurations, why they lost, and why the others were left out."""
    if not candidates:
        return []
    planned = [candidate for candidate in candidates if candidate.outcome == "planned"][:top]
    table = grid(f"Best {len(planned)} of {count(len(candidates), 'configuration')}")
    for heading in ("", "pipeline", "replicas", "devices", "micro-batches", "rows/s", "memory"):
        left = heading == "pipeline"
        table.add_column(heading, justify="left" if left else "right", no_wrap=not left)
    for place, candidate in enumerate(planned, start=1):
        request = candidate.request
        table.add_row(
            str(place),
            _pipeline(request),
            str(request.replicas),
            str(candidate.devices),
            f"{request.microbatches} × {candidate.microbatch_size}",
            f"{candidate.samples_per_s:.4g}",
            format_bytes(candidate.memory_bytes),
            style=STRONG if place == 1 else "",
        )
    table.caption = "memory: of the fullest device; --json lists every configuration"
    lost = [f"{place}: {each.reason}" for place, each in enumerate(planned, start=1) if each.reason]
    return [
        "",
        table,
        *remarks(tuple(lost)),
        *remarks((*_without_plan(candidates), *left_out)),
    ]


def _pipeline(request: PlanRequest) -> str:
    """Return stages, schedule and recomputation of a configuration."""
    parts = [count(request.stages, "stage")]
    if request.stages > 1:
        parts.append(request.schedule)
    if request.recompute != "none":
        parts.append(f"recompute {request.recompute}")
    return ", ".join(parts)


_REASONS = 8
"""Different reasons that are listed."""


def _without_plan(candidates: Sequence[Candidate]) -> tuple[str, ...]:
    """Return why configurations have no plan, and how many of each kind."""
    counts: Counter[str] = Counter()
    for candidate in candidates:
        if candidate.outcome == "slower":
            counts["slower than those above, by the bound of their step"] += 1
        elif candidate.outcome != "planned":
            counts[candidate.reason] += 1
    listed = [f"{number} × {reason}" for reason, number in counts.most_common(_REASONS)]
    if more := sum(counts.values()) - sum(n for _, n in counts.most_common(_REASONS)):
        listed.append(f"{more} × other reasons, as --json says")
    return tuple(listed)


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
        format_bytes(max(plan.memory_by_rank)),
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
    if spelled(plan.request):
        table.caption = Text("fits: into memory, and what was wished", style=LABEL)
    return ["", table]


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
