"""``autosplit show``: what a profile, a plan or an export says."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.options import FILE, Command, as_json, force
from autosplit.errors import UsageError
from autosplit.report.chrome import trace_data
from autosplit.report.data import export_data, plan_data, profile_data, to_text
from autosplit.report.tables import (
    export_table,
    memory_table,
    plan_tables,
    profile_tables,
    time_table,
)
from autosplit.report.trees import plan_tree, profile_tree
from autosplit.serialize import dump_data, refuse_existing
from autosplit.types import Plan, Profile


@click.command(cls=Command, short_help="Show a profile, a plan or an export.")
@click.argument("file", type=FILE)
@click.option("--top", type=click.IntRange(1), default=10, help="Layers in a profile's table.")
@click.option("--depth", type=click.IntRange(1), default=3, help="Names of a path in the tree.")
@click.option("--trace", type=FILE, help="Write a plan's step as a Chrome trace (Perfetto).")
@as_json
@force
@click.pass_obj
def command(
    terminal: Terminal,
    file: Path,
    top: int,
    depth: int,
    trace: Path | None,
    as_json: bool,
    force: bool,
) -> None:
    """Show FILE: a profile, a plan, or the folder of an export."""
    if trace is not None:
        refuse_existing(trace, force)
    shown = workflow.read(file)
    if trace is not None:
        if isinstance(shown, Profile):
            raise UsageError("a profile has no step to trace", hint="give --trace with a plan")
        dump_data(trace_data(workflow.timeline(shown)), trace, force=force)
        terminal.say(f"Wrote {trace}.")
    if isinstance(shown, Profile):
        _show_profile(terminal, file, shown, top, depth, as_json)
    elif file.is_dir():
        _show_export(terminal, file, shown, as_json)
    elif as_json:
        terminal.write(to_text(plan_data(shown)))
    else:
        _show_plan(terminal, shown)
        terminal.next_step("export", str(file), "-o", "pipeline")


def _show_profile(
    terminal: Terminal, file: Path, profile: Profile, top: int, depth: int, as_json: bool
) -> None:
    if as_json:
        terminal.write(to_text(profile_data(profile)))
        return
    head, *rest = profile_tables(profile, top)
    terminal.show(head, "", profile_tree(profile, depth), *rest)
    terminal.next_step("plan", str(file), "--stages", "2")


def _show_export(terminal: Terminal, folder: Path, plan: Plan, as_json: bool) -> None:
    stages = workflow.read_export(folder)
    if as_json:
        terminal.write(to_text(export_data(plan, stages)))
        return
    _show_plan(terminal, plan)
    terminal.show("", export_table(stages))
    terminal.next_step("verify", str(folder))


def _show_plan(terminal: Terminal, plan: Plan) -> None:
    head, gap, stages, *notes = plan_tables(plan)
    terminal.show(head, gap, stages, gap, plan_tree(plan), gap, time_table(plan))
    terminal.show(gap, memory_table(plan), *notes)
