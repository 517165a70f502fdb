"""Constants that follow ``self.training``: found by comparing a trace of each mode."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping as MappingABC

from autosplit.program import (
    Arg,
    CallInterface,
    Mapping,
    Node,
    Sequence,
    Size,
    Slice,
    TrainingSwitch,
)
from autosplit.sizes import evaluate

_CONSTANTS = (bool, int, float, type(None))


class Different(Exception):  # noqa: N818 - it is caught, never shown
    """The two modes do other operations, from ``location`` on."""

    def __init__(self, location: str | None) -> None:
        super().__init__(location)
        self.location = location


def merge_modes(
    nodes: tuple[Node, ...],
    other: tuple[Node, ...],
    training: bool,
    sizes: MappingABC[str, int],
) -> dict[str, Node]:
    """Return the nodes whose constants differ in the other mode, by name.

    A constant that differs becomes a ``TrainingSwitch``.

    Parameters
    ----------
    nodes
        Nodes of the trace; ``training`` tells its mode.
    other
        Nodes of the other mode, recorded with ``sizes`` as numbers.

    Raises
    ------
    Different
        If the modes differ in more than constants.
    """
    merge = _Merge(training, sizes)
    merged: dict[str, Node] = {}
    for a, b in zip(nodes, other, strict=False):
        if (a.name, a.op, a.target) != (b.name, b.op, b.target):
            raise Different(a.location or b.location)
        try:
            args, kwargs = merge.all(a.args, b.args), merge.pairs(a.kwargs, b.kwargs)
        except Different:
            raise Different(a.location) from None
        if (args, kwargs) != (a.args, a.kwargs) or a.random != b.random:
            merged[a.name] = dataclasses.replace(
                a, args=args, kwargs=kwargs, random=a.random or b.random
            )
    if len(nodes) != len(other):
        longer = max(nodes, other, key=len)
        raise Different(longer[min(len(nodes), len(other))].location)
    return merged


def merge_interfaces(
    ours: MappingABC[int, CallInterface | None],
    other: MappingABC[int, CallInterface | None],
    training: bool,
    sizes: MappingABC[str, int],
) -> dict[int, CallInterface | None]:
    """Return module calls whose constants hold in both modes; those that cannot are None.

    Both mappings stand in the order of the calls; see ``merge_modes`` for the rest.
    """
    merge = _Merge(training, sizes)
    if len(ours) != len(other):
        return {}
    pairs = zip(ours.items(), other.values(), strict=True)
    return {at: merge.interface(a, b) for (at, a), b in pairs}


class _Merge:
    """Merges arguments of the two modes."""

    def __init__(self, training: bool, sizes: MappingABC[str, int]) -> None:
        self._training = training
        self._sizes = sizes

    def interface(self, a: CallInterface | None, b: CallInterface | None) -> CallInterface | None:
        if a is None or b is None:
            return None
        try:
            args, kwargs = self.all(a.args, b.args), self.pairs(a.kwargs, b.kwargs)
        except Different:
            return None
        same = a.result == b.result and a.ambient == b.ambient
        return CallInterface(args, kwargs, a.result, a.ambient) if same else None

    def one(self, a: Arg, b: Arg) -> Arg:
        if a == b and type(a) is type(b):
            return a
        if isinstance(a, Size) and evaluate(a.expression, self._sizes) == b:
            return a
        if isinstance(a, _CONSTANTS) and isinstance(b, _CONSTANTS):
            return TrainingSwitch(a, b) if self._training else TrainingSwitch(b, a)
        if isinstance(a, Sequence) and isinstance(b, Sequence) and a.kind == b.kind:
            return Sequence(a.kind, self.all(a.items, b.items))
        if isinstance(a, Slice) and isinstance(b, Slice):
            return Slice(
                self.one(a.start, b.start), self.one(a.stop, b.stop), self.one(a.step, b.step)
            )
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            return Mapping(self.pairs(a.items, b.items))
        raise Different(None)

    def all(self, a: tuple[Arg, ...], b: tuple[Arg, ...]) -> tuple[Arg, ...]:
        if len(a) != len(b):
            raise Different(None)
        return tuple(self.one(x, y) for x, y in zip(a, b, strict=True))

    def pairs(
        self, a: tuple[tuple[str, Arg], ...], b: tuple[tuple[str, Arg], ...]
    ) -> tuple[tuple[str, Arg], ...]:
        if [name for name, _ in a] != [name for name, _ in b]:
            raise Different(None)
        return tuple((name, self.one(x, y)) for (name, x), (_, y) in zip(a, b, strict=True))
