"""``autosplit verify``: run an export against the original model."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.kinds import EXPORT, expect
from autosplit.cli.options import FILE, Command, LazyChoice, as_json
from autosplit.report.data import to_text, verification_data
from autosplit.report.verifications import verification_table


@click.command(cls=Command, short_help="Run an export against the original model.")
@click.argument("folder", type=FILE)
@click.option("--distributed", is_flag=True, help="Run one process per rank under torchrun.")
@click.option(
    "--schedule",
    "schedules",
    multiple=True,
    type=LazyChoice("schedule", "autosplit.schedules:SCHEDULES", extra=("all",)),
    help="Schedule of these processes, several times for several; all: every one that runs on "
    "the ranks of the stages. Means --distributed.  [default: the plan's]",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(0),
    help="Largest difference allowed.  [default: by dtype; 1e-5 for float32]",
)
@as_json
@click.pass_obj
def command(
    terminal: Terminal,
    folder: Path,
    distributed: bool,
    schedules: tuple[str, ...],
    tolerance: float | None,
    as_json: bool,
) -> None:
    """Compare outputs, loss, gradients and buffers of FOLDER with the original model."""
    expect(folder, EXPORT)
    distributed = distributed or bool(schedules)
    with terminal.step("verify"):
        result = workflow.verify(
            folder, distributed=distributed, schedules=schedules, tolerance=tolerance
        )
    if as_json:
        terminal.write(to_text(verification_data(result)))
    else:
        terminal.show(verification_table(result))
    result.raise_if_failed()
    terminal.say("The pipeline equals the model.")
    if distributed:
        terminal.next_step("train.py", program=str(folder / "launch.sh"))
    else:
        terminal.next_step("verify", str(folder), "--distributed")
