"""``autosplit show``: what a profile, a plan or an export says."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.options import FILE, Command, as_json
from autosplit.report.data import plan_data, profile_data, to_text
from autosplit.report.tables import memory_table, plan_tables, profile_tables, time_table
from autosplit.report.trees import plan_tree, profile_tree
from autosplit.types import Plan, Profile


@click.command(cls=Command, short_help="Show a profile, a plan or an export.")
@click.argument("file", type=FILE)
@click.option("--top", type=click.IntRange(1), default=10, help="Layers in a profile's table.")
@click.option("--depth", type=click.IntRange(1), default=3, help="Names of a path in the tree.")
@as_json
@click.pass_obj
def command(terminal: Terminal, file: Path, top: int, depth: int, as_json: bool) -> None:
    """Show FILE: a profile, a plan, or the folder of an export."""
    shown = workflow.read(file)
    if as_json:
        data = profile_data(shown) if isinstance(shown, Profile) else plan_data(shown)
        terminal.write(to_text(data))
    elif isinstance(shown, Profile):
        _show_profile(terminal, shown, top, depth)
        terminal.next_step("plan", str(file), "--stages", "2")
    else:
        _show_plan(terminal, shown)
        if file.is_dir():
            terminal.next_step("verify", str(file))
        else:
            terminal.next_step("export", str(file), "-o", "pipeline")


def _show_profile(terminal: Terminal, profile: Profile, top: int, depth: int) -> None:
    head, *rest = profile_tables(profile, top)
    terminal.show(head, "", profile_tree(profile, depth), *rest)


def _show_plan(terminal: Terminal, plan: Plan) -> None:
    head, gap, stages, *notes = plan_tables(plan)
    terminal.show(head, gap, stages, gap, plan_tree(plan), gap, time_table(plan))
    terminal.show(gap, memory_table(plan), *notes)
