"""What users wish of a plan, in terms of layers: where some stand, and with which others.

Wishes that contradict one another are refused by name where that can be seen without a search.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypeVar

from autosplit.errors import InfeasibleError, UsageError
from autosplit.graph import Graph, contract, find, modules
from autosplit.places import Pair, Places, check_order
from autosplit.types import PlanRequest
from autosplit.units import counted

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Constraints:
    """The nodes that solvers move, and where some of them have to be.

    Parameters
    ----------
    groups
        Layers that stay together, each layer in one group, in a topological order.
    fixed
        ``(group, stage)`` pairs.
    apart
        Pairs of sets of groups: no stage holds groups of both.
    alone
        Groups whose stage holds nothing else.
    start
        Stages of the groups in a known plan, with which a search may start.
    """

    groups: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...] = ()
    apart: tuple[Pair, ...] = ()
    alone: tuple[int, ...] = ()
    start: tuple[int, ...] | None = None

    def from_plan(self, stage_of: Sequence[int]) -> Constraints:
        """Return the same with the stages of a plan as the start, if it grants every wish."""
        if not self.met_by(stage_of):
            return self
        return replace(self, start=tuple(stage_of[group[0]] for group in self.groups))

    def met_by(self, stage_of: Sequence[int]) -> bool:
        """Return whether the stages of the layers grant every wish."""
        placed = [stage_of[group[0]] for group in self.groups]
        return (
            all(
                stage_of[layer] == stage
                for group, stage in zip(self.groups, placed, strict=True)
                for layer in group
            )
            and all(placed[group] == stage for group, stage in self.fixed)
            and all(
                {placed[group] for group in first}.isdisjoint(placed[group] for group in second)
                for first, second in self.apart
            )
            and all(placed.count(placed[group]) == 1 for group in self.alone)
        )


def read(graph: Graph, request: PlanRequest) -> Constraints:
    """Return what the wishes of a request mean for a graph.

    A wish names a layer or a module and means all layers inside of it; a pattern stands for every
    module that fits it (see ``graph.modules``).

    Raises
    ------
    UsageError
        If a name fits no layer, or a stage does not exist.
    InfeasibleError
        If wishes contradict one another or the order of the layers.
    """
    if request.granularity == "op" and all(layer.layer is None for layer in graph.layers):
        raise UsageError(
            "the profile is of whole layers, and no plan of it can cut inside of one",
            hint="measure single operations: autosplit profile MODEL --granularity op",
        )
    stage_of = _pinned(graph, request)
    alone = _named_pieces(graph, "--alone", request.alone)
    together = _named_pieces(graph, "--together", request.together)
    pieces = [layers for _, layers in (*together, *alone)]
    groups = contract(len(graph), graph.edges, pieces + _whole(graph, request.granularity))
    if len(groups) < request.stages:
        raise InfeasibleError(
            f"{counted(request.stages, 'stage')}, but only {counted(len(groups), 'piece')} "
            "to put into them",
            cause=f"the model has {counted(len(graph), 'layer')}"
            + (", and some have to stay together" if len(groups) < len(graph) else ""),
            hint=f"take at most {counted(len(groups), 'stage')}",
        )
    check_order(graph, stage_of)
    places = Places(graph, groups, request.stages)
    for layer, stage in stage_of.items():
        places.fix(layer, stage)
    for text, first, second in _named_pairs(graph, request.apart):
        places.part(text, first, second)
    for text, layers in alone:
        places.isolate(text, layers)
    places.refuse_contradictions()
    return Constraints(
        groups=groups,
        fixed=tuple(sorted(places.fixed.items())),
        apart=tuple(pair for _, pair in places.apart),
        alone=tuple(sorted(places.alone)),
    )


def spelled(request: PlanRequest) -> Iterator[tuple[str, PlanRequest]]:
    """Yield each wish of a request as it is typed, with the request that leaves it out."""
    for index, (name, stage) in enumerate(request.pins):
        yield f"--pin {name}={stage}", replace(request, pins=_without(request.pins, index))
    for index, names in enumerate(request.together):
        rest = _without(request.together, index)
        yield f"--together {','.join(names)}", replace(request, together=rest)
    for index, names in enumerate(request.apart):
        yield f"--apart {','.join(names)}", replace(request, apart=_without(request.apart, index))
    for index, names in enumerate(request.alone):
        yield f"--alone {','.join(names)}", replace(request, alone=_without(request.alone, index))
    if request.boundaries:
        yield f"--boundaries {','.join(request.boundaries)}", replace(request, boundaries=())
    if request.granularity == "block":
        yield "--granularity block", replace(request, granularity="layer")


def _without(wishes: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*wishes[:index], *wishes[index + 1 :])


# ---------------------------------------------------------------- names to layers


def _named_pieces(
    graph: Graph, option: str, wishes: Iterable[Sequence[str]]
) -> list[tuple[str, tuple[int, ...]]]:
    """Return what wishes keep whole: the layers of all names, or each module of a sole name."""
    found = []
    for names in wishes:
        text = f"{option} {','.join(names)}"
        if len(names) == 1:
            found += [(text, layers) for layers in modules(graph, names[0]).values()]
        else:
            found.append((text, tuple(layer for name in names for layer in find(graph, name))))
    return found


def _named_pairs(
    graph: Graph, wishes: Iterable[Sequence[str]]
) -> Iterator[tuple[str, tuple[int, ...], tuple[int, ...]]]:
    """Yield every two modules that are to stay apart, as layers."""
    for names in wishes:
        text = f"--apart {','.join(names)}"
        found = {path: part for name in names for path, part in modules(graph, name).items()}
        if len(found) < 2:
            raise UsageError(f"{text} names one module only", hint="name two, such as embed,head")
        for (first, some), (second, others) in combinations(found.items(), 2):
            if common := set(some) & set(others):
                raise InfeasibleError(
                    f"{first} and {second} cannot stay apart",
                    cause=f"{graph.layers[min(common)].name} is part of both",
                    hint=f"leave out {text}",
                )
            yield text, some, others


def _whole(graph: Graph, granularity: str) -> list[tuple[int, ...]]:
    """Return what no boundary may divide: the operations of a layer, the layers of a block."""
    parts: dict[tuple[str, str], list[int]] = {}
    for position, layer in enumerate(graph.layers):
        if layer.layer is not None and granularity != "op":
            parts.setdefault(("layer", layer.layer), []).append(position)
        if layer.block is not None and granularity == "block":
            parts.setdefault(("block", layer.block), []).append(position)
    return [tuple(layers) for layers in parts.values()]


def _given(graph: Graph, request: PlanRequest) -> list[tuple[int, int]]:
    """Return the stage of every layer when the boundaries are given instead of searched."""
    if not request.boundaries:
        return []
    starts = [
        graph.index[name] if name in graph.index else min(find(graph, name))
        for name in request.boundaries
    ]
    if len(starts) != request.stages - 1:
        raise UsageError(
            f"{counted(len(starts), 'boundary')} {'makes' if len(starts) == 1 else 'make'} "
            f"{len(starts) + 1} stages, not {request.stages}",
            cause="each names the first layer of a stage; stage 0 needs none",
            hint=_naming(request.stages),
        )
    if sorted(set(starts)) != starts or starts[0] == 0:
        raise UsageError(
            f"{', '.join(request.boundaries)} are not the boundaries of "
            f"{counted(request.stages, 'stage')}",
            hint=_naming(request.stages),
        )
    return [(layer, bisect.bisect_right(starts, layer)) for layer in range(len(graph))]


def _naming(stages: int) -> str:
    if stages == 1:
        return "leave out --boundaries: one stage has none"
    which = "stage 1" if stages == 2 else f"each of stages 1 to {stages - 1}"
    return f"name the first layer of {which}, in running order"


def _pinned(graph: Graph, request: PlanRequest) -> dict[int, int]:
    """Return the stage of every layer that has one."""
    for name, stage in request.pins:
        if not 0 <= stage < request.stages:
            raise UsageError(
                f"cannot pin {name} to stage {stage}",
                hint="the one stage is stage 0"
                if request.stages == 1
                else f"with {request.stages} stages they are numbered 0 to {request.stages - 1}",
            )
    pins = [(layer, stage) for name, stage in request.pins for layer in find(graph, name)]
    stage_of: dict[int, int] = {}
    for layer, stage in (*pins, *_given(graph, request)):
        if stage_of.setdefault(layer, stage) != stage:
            raise InfeasibleError(
                f"{graph.layers[layer].name} is pinned to stages {stage_of[layer]} and {stage}",
                hint="leave out one --pin" + (", or --boundaries" if request.boundaries else ""),
            )
    return stage_of
