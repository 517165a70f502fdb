"""Where wishes let layers stand; wishes that contradict are refused by name before any search."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from autosplit.errors import InfeasibleError
from autosplit.graph import Graph

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""Two sets of groups that share no stage."""


def check_order(graph: Graph, stage_of: dict[int, int]) -> None:
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


class Places:
    """Wishes of where groups stand, gathered one by one.

    Parameters
    ----------
    graph, groups
        Layers, and those of them that stay together, in a topological order.
    stages
        Number of stages.

    Attributes
    ----------
    fixed
        Stage of each group that has one.
    apart
        Pairs of sets of groups that share no stage, with the wish that says so.
    alone
        Groups whose stage holds nothing else, with the wish that says so.

    Raises
    ------
    InfeasibleError
        From every method, where a wish contradicts those before it.
    """

    def __init__(self, graph: Graph, groups: Sequence[tuple[int, ...]], stages: int) -> None:
        self.graph, self.groups, self.stages = graph, groups, stages
        self.group_of = {layer: number for number, group in enumerate(groups) for layer in group}
        self.fixed: dict[int, int] = {}
        self.apart: list[tuple[str, Pair]] = []
        self.alone: dict[int, str] = {}
        self._pinned: dict[int, int] = {}

    def fix(self, layer: int, stage: int) -> None:
        """Put the group of a layer on a stage."""
        group = self.group_of[layer]
        if self.fixed.setdefault(group, stage) != stage:
            other = self._pinned[group]
            raise InfeasibleError(
                f"{self._name(other)} and {self._name(layer)} have to stay together, but are "
                f"pinned to stages {self.fixed[group]} and {stage}",
                cause=self._glued(group),
            )
        self._pinned.setdefault(group, layer)

    def part(self, text: str, first: Sequence[int], second: Sequence[int]) -> None:
        """Keep the groups of some layers apart from those of others."""
        one, two = self._of(first), self._of(second)
        if common := set(one) & set(two):
            group = min(common)
            a = next(layer for layer in first if self.group_of[layer] == group)
            b = next(layer for layer in second if self.group_of[layer] == group)
            raise InfeasibleError(
                f"{self._name(a)} and {self._name(b)} are to stay apart, but have to stay together",
                cause=self._glued(group),
                hint=f"leave out {text}, or what keeps them together",
            )
        self.apart.append((text, (one, two)))

    def isolate(self, text: str, layers: Sequence[int]) -> None:
        """Give the group of some layers a stage that holds nothing else."""
        group = self.group_of[layers[0]]
        if extra := sorted(set(self.groups[group]).difference(layers)):
            raise InfeasibleError(
                f"{self._name(layers[0])} cannot have a stage alone",
                cause=f"{self._name(extra[0])} has to stay with it: it runs between its layers, "
                "or is to stay together with them",
                hint=f"leave out {text}, or name {self._name(extra[0])} too",
            )
        self.alone[group] = text

    def refuse_contradictions(self) -> None:
        """Refuse pins that bring strangers together, and groups for which no stage is left."""
        held: dict[int, list[int]] = {}
        for group, stage in self.fixed.items():
            held.setdefault(stage, []).append(group)
        for stage, groups in sorted(held.items()):
            for text, (first, second) in self.apart:
                one, two = set(first).intersection(groups), set(second).intersection(groups)
                if one and two:
                    raise self._both_pinned(stage, min(one), min(two), text)
            for group, text in self.alone.items():
                if group in groups and len(groups) > 1:
                    other = next(each for each in groups if each != group)
                    raise self._both_pinned(stage, group, other, text)
        if self.apart or self.alone:
            self._refuse_narrow()

    def _both_pinned(self, stage: int, group: int, other: int, text: str) -> InfeasibleError:
        return InfeasibleError(
            f"{self._first(group)} and {self._first(other)} are both pinned to stage {stage}",
            cause=f"{text} does not let them share a stage",
            hint=f"leave out {text}, or pin one of them elsewhere",
        )

    def _refuse_narrow(self) -> None:
        """Refuse a group whose first possible stage comes after its last one."""
        steps = self._steps()
        pinned = {group: (stage, ("--pin",)) for group, stage in self.fixed.items()}
        early = [pinned.get(group, (0, ())) for group in range(len(self.groups))]
        for before, after, text in sorted(steps, key=lambda step: step[1]):
            stage, why = early[before]
            if stage + bool(text) > early[after][0]:
                early[after] = (stage + bool(text), (*why, text) if text else why)
        last = self.stages - 1
        late = [pinned.get(group, (last, ())) for group in range(len(self.groups))]
        for before, after, text in sorted(steps, reverse=True):
            stage, why = late[after]
            if stage - bool(text) < late[before][0]:
                late[before] = (stage - bool(text), (*why, text) if text else why)
        for group, ((first, why), (final, other)) in enumerate(zip(early, late, strict=True)):
            if first > final:
                wishes = " or ".join(dict.fromkeys((*why, *other)))
                raise InfeasibleError(
                    f"no stage of {self.stages} is left for {self._first(group)}",
                    cause=f"it can stand in stage {first} at the earliest, for what has to come "
                    f"before it, and in stage {final} at the latest, for what comes after it",
                    hint=f"leave out {wishes}, or take more stages",
                )

    def _steps(self) -> list[tuple[int, int, str]]:
        """Return pairs of groups in order, with the wish for which they cannot share a stage."""
        edges = {(self.group_of[a], self.group_of[b]) for a, b in self.graph.edges}
        steps = [(a, b, self.alone.get(a, self.alone.get(b, ""))) for a, b in edges if a != b]
        for text, pair in self.apart:
            for earlier, later in (pair, pair[::-1]):
                last, first = self._ends(earlier)[1], self._ends(later)[0]
                steps += [(a, b, text) for a in last for b in first if self._after[a] >> b & 1]
        return steps

    def _ends(self, groups: tuple[int, ...]) -> tuple[list[int], list[int]]:
        """Return the groups that come after none of the others, and before none of them."""
        mask = sum(1 << group for group in groups)
        behind = 0
        for group in groups:
            behind |= self._after[group]
        first = [group for group in groups if not behind >> group & 1]
        last = [group for group in groups if not self._after[group] & mask]
        return first, last

    @cached_property
    def _after(self) -> list[int]:
        """All groups after each one, as bit masks."""
        after = [0] * len(self.groups)
        for group in reversed(range(len(self.groups))):
            for layer in self.groups[group]:
                for reader in self.graph.successors[layer]:
                    other = self.group_of[reader]
                    if other != group:
                        after[group] |= after[other] | 1 << other
        return after

    # ------------------------------------------------------------ words

    def _of(self, layers: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted({self.group_of[layer] for layer in layers}))

    def _name(self, layer: int) -> str:
        return self.graph.layers[layer].name

    def _first(self, group: int) -> str:
        return self._name(self.groups[group][0])

    def _glued(self, group: int) -> str:
        names = [self._name(layer) for layer in self.groups[group]]
        shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
        return f"no boundary may divide {shown}"
