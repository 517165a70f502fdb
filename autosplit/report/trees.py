"""Profiles by module path and plans by stage, as rich trees."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text
from rich.tree import Tree

from autosplit.report.advice import layer_s, total_s
from autosplit.report.bars import bar, heat
from autosplit.report.paths import Module, summarize, tree
from autosplit.report.plans import bottleneck, stage_s
from autosplit.report.styles import HOT, LABEL, STRONG
from autosplit.report.tables import model_name
from autosplit.types import Plan, Profile
from autosplit.units import format_bytes, format_seconds, format_share

_BAR = 10


def profile_tree(profile: Profile, depth: int = 3) -> Tree:
    """Return time by module path; equal neighbours stand on one line.

    Parameters
    ----------
    depth
        Names of a path that are shown; what lies deeper is summed.
    """
    root = Tree(Text(model_name(profile.model), style=STRONG), guide_style=LABEL)
    _grow(root, tree([layer.name for layer in profile.layers]), profile, depth)
    return root


def _grow(branch: Tree, module: Module, profile: Profile, depth: int) -> None:
    if depth == 0 or len(module.layers) == 1:
        return
    for run in _equal_runs(module, profile):
        first, last = run[0], run[-1]
        name = first.path if len(run) == 1 else f"{first.path} … {last.path}"
        seconds = sum(layer_s(profile.layer[name]) for child in run for name in child.layers)
        share = seconds / (total_s(profile) or 1.0)
        label = Text.assemble(
            bar(share, _BAR),
            (f" {format_share(share):>6} ", heat(share)),
            (f"{format_seconds(seconds):>8}  ", ""),
            (name, STRONG),
            (f"  {len(run)} alike" if len(run) > 1 else "", LABEL),
        )
        _grow(branch.add(label), first, profile, depth - 1)


def _equal_runs(module: Module, profile: Profile) -> Iterator[list[Module]]:
    """Yield neighbouring children together while they have the same structures."""
    run: list[Module] = []
    for child in module.children.values():
        if run and _structure(run[-1], profile) != _structure(child, profile):
            yield run
            run = []
        run.append(child)
    if run:
        yield run


def _structure(module: Module, profile: Profile) -> tuple[str, ...]:
    return tuple(profile.layer[name].structure for name in module.layers)


def plan_tree(plan: Plan) -> Tree:
    """Return the stages with the layers each holds, whole modules named once."""
    root = Tree(Text(model_name(plan.model), style=STRONG), guide_style=LABEL)
    slowest = bottleneck(plan)
    largest = stage_s(plan.stages[slowest]) or 1.0
    for index, stage in enumerate(plan.stages):
        seconds = stage_s(stage)
        label = Text.assemble(
            (f"stage {index} ", STRONG),
            bar(seconds / largest, _BAR),
            (f" {format_seconds(seconds):>8}", heat(seconds / largest)),
            f"  {format_bytes(stage.memory.total_bytes)}",
            (f"  on {stage.device}" if stage.device else "", LABEL),
            ("  ◀ bottleneck" if index == slowest else "", HOT),
        )
        branch = root.add(label)
        for name in summarize(stage.layers, plan.order):
            branch.add(Text(name))
    return root
