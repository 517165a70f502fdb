"""``autosplit plan``: find the best stage boundaries."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.options import (
    BYTES,
    FILE,
    RATE,
    SECONDS,
    Command,
    LazyChoice,
    Pin,
    as_json,
    force,
)
from autosplit.report.data import plan_data, to_text
from autosplit.report.tables import plan_tables
from autosplit.serialize import refuse_existing
from autosplit.types import PlanRequest


@click.command(cls=Command, short_help="Find the best stage boundaries.")
@click.argument("profile", type=FILE)
@click.option(
    "-o", "--output", type=FILE, help="File to write.  [default: plan.json; none with --json]"
)
@click.option(
    "--stages", "--gpus", "stages", type=click.IntRange(1), required=True, help="Stages to make."
)
@click.option("--microbatches", type=click.IntRange(1), help="Per step.  [default: 4 per stage]")
@click.option(
    "--schedule",
    type=LazyChoice("schedule", "autosplit.schedules:SCHEDULES"),
    default="1f1b",
    help="Order of work.",
)
@click.option("--memory", type=BYTES, help="Memory of each device, such as 16GiB.")
@click.option("--bandwidth", type=RATE, help="Speed of a link between stages, such as 10GB/s.")
@click.option("--latency", type=SECONDS, default="0s", help="Latency of a link, such as 5us.")
@click.option("--overlap", is_flag=True, help="Transfers run beside compute.")
@click.option(
    "--optimizer",
    type=LazyChoice("optimizer", "autosplit.cost:OPTIMIZER_COPIES"),
    default="adam",
    help="Whose state takes memory.",
)
@click.option(
    "--objective",
    type=click.Choice(["step", "bottleneck"]),
    default="step",
    help="Make the whole step or the busiest stage shortest.",
)
@click.option("--pin", "pins", type=Pin(), multiple=True, help="Put a layer on a stage (from 0).")
@click.option(
    "--solver",
    type=LazyChoice("solver", "autosplit.solvers:SOLVERS", extra=("auto",)),
    default="auto",
)
@click.option("--time-limit", type=SECONDS, default="60s", help="Time for the solver.")
@click.option(
    "--gap", type=click.FloatRange(0, 1), default=0.0, help="Share of the best that may be lost."
)
@click.option("--cross-check", is_flag=True, help="Solve with every solver; fail if they differ.")
@as_json
@force
@click.pass_obj
def command(
    terminal: Terminal,
    profile: Path,
    output: Path | None,
    stages: int,
    microbatches: int | None,
    schedule: str,
    memory: int | None,
    bandwidth: float | None,
    latency: float,
    overlap: bool,
    optimizer: str,
    objective: str,
    pins: tuple[tuple[str, int], ...],
    solver: str,
    time_limit: float,
    gap: float,
    cross_check: bool,
    as_json: bool,
    force: bool,
) -> None:
    """Divide the layers of PROFILE into stages, proven best where time allows."""
    if output is None and not as_json:
        output = Path("plan.json")
    if output is not None:
        refuse_existing(output, force)
    request = PlanRequest(
        stages=stages,
        microbatches=microbatches or 4 * stages,
        schedule=schedule,
        memory_bytes=memory,
        link_bytes_per_s=bandwidth,
        latency_s=latency,
        overlap=overlap,
        optimizer=optimizer,
        objective="step" if objective == "step" else "bottleneck",
        pins=pins,
        solver=solver,
        time_limit_s=time_limit,
        gap=gap,
    )
    with terminal.step("plan"):
        plan = workflow.plan(profile, request, cross_check=cross_check)
    if as_json:
        terminal.write(to_text(plan_data(plan)))
    else:
        terminal.show(*plan_tables(plan))
    if plan.status == "feasible":
        terminal.warn(f"the limit came before a proof; the best is at most {plan.gap:.1%} better")
    if output is not None:
        workflow.save(plan, output, force=force)
        terminal.say(f"Wrote {output}.")
        terminal.next_step("export", str(output), "-o", "pipeline")
