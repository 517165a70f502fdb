"""``autosplit show``: what a profile, a plan or an export says."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.kinds import EXPORT, PLAN, PROFILE, expect
from autosplit.cli.options import FILE, Command, as_json, force
from autosplit.errors import UsageError
from autosplit.report.chrome import profile_trace, trace_data
from autosplit.report.comparison import comparison_data, comparison_tables
from autosplit.report.data import export_data, plan_data, profile_data, to_text
from autosplit.report.dot import graph_dot
from autosplit.report.plans import export_table, memory_table, plan_tables, time_table
from autosplit.report.profiles import profile_tables
from autosplit.report.sheet import plan_csv, profile_csv
from autosplit.report.trees import plan_tree, profile_tree
from autosplit.serialize import dump_data, dump_text, refuse_existing
from autosplit.types import Plan, Profile


@click.command(cls=Command, short_help="Show a profile, a plan or an export; compare two profiles.")
@click.argument("file", type=FILE)
@click.argument("other", type=FILE, required=False)
@click.option("--top", type=click.IntRange(1), default=10, help="Lines in a profile's table.")
@click.option("--depth", type=click.IntRange(1), default=3, help="Names of a path in the tree.")
@click.option("--trace", type=FILE, help="Write layers or a plan's step as a Chrome trace.")
@click.option("--dot", type=FILE, help="Write the graph of layers for Graphviz.")
@click.option("--csv", "as_csv", is_flag=True, help="Print one line for each layer or stage.")
@as_json
@force
@click.pass_obj
def command(
    terminal: Terminal,
    file: Path,
    other: Path | None,
    top: int,
    depth: int,
    trace: Path | None,
    dot: Path | None,
    as_csv: bool,
    as_json: bool,
    force: bool,
) -> None:
    """Show FILE: a profile, a plan, or the folder of an export.

    With OTHER, compare two profiles, module by module.
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json are two forms of one output", hint="give one of them")
    if trace is not None:
        refuse_existing(trace, force, (file,))
    if dot is not None:
        refuse_existing(dot, force, (file,) if trace is None else (file, trace))
    expect(file, PROFILE, PLAN, EXPORT)
    shown = workflow.read(file)
    if other is not None:
        if trace or dot or as_csv:
            raise UsageError("two profiles are compared as a table", hint="or with --json")
        _compare(terminal, shown, workflow.read(other), top, depth, as_json)
        return
    if trace is not None:
        dump_data(_trace_data(shown), trace, force=force)
        terminal.say(f"Wrote {trace}.")
    if dot is not None:
        dump_text(_dot(shown), dot, force=force)
        terminal.say(f"Wrote {dot}.")
    if as_csv:
        terminal.write(profile_csv(shown) if isinstance(shown, Profile) else plan_csv(shown))
    elif isinstance(shown, Profile):
        _show_profile(terminal, file, shown, top, depth, as_json)
    elif file.is_dir():
        _show_export(terminal, file, shown, as_json)
    elif as_json:
        terminal.write(to_text(plan_data(shown)))
    else:
        _show_plan(terminal, shown)
        terminal.next_step("export", str(file), "-o", "pipeline")


def _trace_data(shown: Profile | Plan) -> dict[str, object]:
    if isinstance(shown, Profile):
        return profile_trace(shown)
    return trace_data(workflow.timeline(shown))


def _dot(shown: Profile | Plan) -> str:
    if isinstance(shown, Profile):
        return graph_dot(shown)
    return graph_dot(workflow.profile_of(shown), shown)


def _compare(
    terminal: Terminal,
    first: Profile | Plan,
    second: Profile | Plan,
    top: int,
    depth: int,
    as_json: bool,
) -> None:
    if not isinstance(first, Profile) or not isinstance(second, Profile):
        raise UsageError(
            "only profiles are compared", hint="autosplit plan --compare compares plans"
        )
    if as_json:
        terminal.write(to_text(comparison_data(first, second, depth)))
    else:
        terminal.show(*comparison_tables(first, second, depth, top))


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
