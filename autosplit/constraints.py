"""What users wish of a plan, in terms of layers: pins and layers that stay together.

A wish names a layer ("h.3.attn") or a module path ("h.3"), which means all layers inside of it.
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autosplit.errors import InfeasibleError, UsageError
from autosplit.graph import Graph, contract
from autosplit.types import PlanRequest


@dataclass(frozen=True, slots=True)
class Constraints:
    """The nodes that solvers move, and where some of them have to be.

    Parameters
    ----------
    groups
        Layers that stay together, each layer in one group, in a topological order.
    fixed
        ``(group, stage)`` pairs.
    """

    groups: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]

    def met_by(self, stage_of: Sequence[int]) -> bool:
        """Return whether the stages of the layers keep groups whole and where they belong."""
        return all(
            stage_of[layer] == stage_of[group[0]] for group in self.groups for layer in group
        ) and all(stage_of[self.groups[group][0]] == stage for group, stage in self.fixed)


def read(graph: Graph, request: PlanRequest) -> Constraints:
    """Return what the wishes of a request mean for a graph.

    Raises
    ------
    UsageError
        If a name fits no layer, or a stage does not exist.
    InfeasibleError
        If wishes contradict one another or the order of the layers.
    """
    stages = request.stages
    stage_of = _pinned(graph, stages, (*request.pins, *_given(graph, request)))
    together = [
        [layer for name in names for layer in find(graph, name)] for names in request.together
    ]
    if request.granularity == "block":
        together += _blocks(graph)
    groups = contract(len(graph), graph.edges, together)
    if len(groups) < stages:
        raise InfeasibleError(
            f"{stages} stages, but only {len(groups)} pieces to put into them",
            cause=f"the model has {len(graph)} layers"
            + (", and some have to stay together" if len(groups) < len(graph) else ""),
            hint=f"take at most {len(groups)} stages",
        )
    fixed: dict[int, int] = {}
    names = graph.layers
    for number, group in enumerate(groups):
        wanted = {stage_of[layer]: layer for layer in group if layer in stage_of}
        if len(wanted) > 1:
            (first, a), (second, b) = sorted(wanted.items())[:2]
            raise InfeasibleError(
                f"{names[a].name} and {names[b].name} have to stay together, but are pinned to "
                f"stages {first} and {second}"
            )
        if wanted:
            fixed[number] = next(iter(wanted))
    _check_order(graph, stage_of)
    return Constraints(groups, tuple(sorted(fixed.items())))


def find(graph: Graph, name: str) -> tuple[int, ...]:
    """Return the layers that a name means: one layer, or all inside a module path.

    Raises
    ------
    UsageError
        If there is none.
    """
    if name in graph.index:
        return (graph.index[name],)
    found = tuple(
        position
        for position, layer in enumerate(graph.layers)
        if any(path.startswith(f"{name}.") or path == name for path in (layer.name, layer.module))
    )
    if found:
        return found
    known = [layer.name for layer in graph.layers]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
    raise UsageError(
        f"no layer or module is called {name!r}",
        hint=f"close names: {', '.join(close)}; autosplit show lists all",
    )


def _given(graph: Graph, request: PlanRequest) -> list[tuple[str, int]]:
    """Return a pin for every layer when the boundaries are given instead of searched."""
    if not request.boundaries:
        return []
    starts = [min(find(graph, name)) for name in request.boundaries]
    if len(starts) != request.stages - 1:
        raise UsageError(
            f"{len(starts)} boundaries make {len(starts) + 1} stages, not {request.stages}",
            cause="each names the first layer of a stage; stage 0 needs none",
            hint=f"name the first layer of stages 1 to {request.stages - 1}, in running order",
        )
    if sorted(set(starts)) != starts or starts[0] == 0:
        raise UsageError(
            f"{', '.join(request.boundaries)} are not the boundaries of {request.stages} stages",
            hint=f"name the first layer of stages 1 to {request.stages - 1}, in running order",
        )
    return [
        (layer.name, bisect.bisect_right(starts, position))
        for position, layer in enumerate(graph.layers)
    ]


def _blocks(graph: Graph) -> list[list[int]]:
    """Return the layers of each block: of one element of a list of modules."""
    blocks: dict[str, list[int]] = {}
    for position, layer in enumerate(graph.layers):
        if layer.block is not None:
            blocks.setdefault(layer.block, []).append(position)
    return list(blocks.values())


def _pinned(graph: Graph, stages: int, pins: Iterable[tuple[str, int]]) -> dict[int, int]:
    stage_of: dict[int, int] = {}
    for name, stage in pins:
        if not 0 <= stage < stages:
            raise UsageError(
                f"cannot pin {name} to stage {stage}",
                hint=f"with {stages} stages they are numbered 0 to {stages - 1}",
            )
        for layer in find(graph, name):
            if stage_of.setdefault(layer, stage) != stage:
                raise InfeasibleError(
                    f"{graph.layers[layer].name} is pinned to stages {stage_of[layer]} and {stage}"
                )
    return stage_of


def _check_order(graph: Graph, stage_of: dict[int, int]) -> None:
    """Refuse a layer pinned to a later stage than one that needs it."""
    latest: list[tuple[int, int]] = [(0, -1)] * len(graph)
    for layer in range(len(graph)):
        before = [latest[other] for other in graph.predecessors[layer]]
        latest[layer] = max(before, default=(0, -1))
        if layer not in stage_of:
            continue
        stage, source = latest[layer]
        if stage > stage_of[layer]:
            raise InfeasibleError(
                f"{graph.layers[layer].name} is pinned to stage {stage_of[layer]}, before "
                f"{graph.layers[source].name} in stage {stage}",
                cause=f"{graph.layers[layer].name} needs what {graph.layers[source].name} makes",
            )
        latest[layer] = (stage_of[layer], layer)
