"""Constants that follow ``self.training``: found by comparing a trace of each mode."""

from __future__ import annotations

import dataclasses

from autosplit.program import Arg, Mapping, Node, Sequence, Slice, TrainingSwitch

_CONSTANTS = (bool, int, float, type(None))


class Different(Exception):  # noqa: N818 - it is caught, never shown
    """The two modes do other operations, from ``location`` on."""

    def __init__(self, location: str | None) -> None:
        super().__init__(location)
        self.location = location


def merge_modes(train: tuple[Node, ...], evaluation: tuple[Node, ...]) -> dict[str, Node]:
    """Return the nodes of the training trace whose constants differ in evaluation, by name.

    A constant that differs becomes a ``TrainingSwitch``.

    Raises
    ------
    Different
        If the modes differ in more than constants.
    """
    merged: dict[str, Node] = {}
    for a, b in zip(train, evaluation, strict=False):
        if (a.name, a.op, a.target, a.calls) != (b.name, b.op, b.target, b.calls):
            raise Different(a.location or b.location)
        if (a.args, a.kwargs) == (b.args, b.kwargs):
            continue
        try:
            merged[a.name] = dataclasses.replace(
                a,
                args=_merge_all(a.args, b.args),
                kwargs=_merge_pairs(a.kwargs, b.kwargs),
                random=a.random or b.random,
            )
        except Different:
            raise Different(a.location) from None
    if len(train) != len(evaluation):
        longer = max(train, evaluation, key=len)
        raise Different(longer[min(len(train), len(evaluation))].location)
    return merged


def _merge(a: Arg, b: Arg) -> Arg:
    if a == b and type(a) is type(b):
        return a
    if isinstance(a, _CONSTANTS) and isinstance(b, _CONSTANTS):
        return TrainingSwitch(a, b)
    if isinstance(a, Sequence) and isinstance(b, Sequence) and a.kind == b.kind:
        return Sequence(a.kind, _merge_all(a.items, b.items))
    if isinstance(a, Slice) and isinstance(b, Slice):
        return Slice(_merge(a.start, b.start), _merge(a.stop, b.stop), _merge(a.step, b.step))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return Mapping(_merge_pairs(a.items, b.items))
    raise Different(None)


def _merge_all(a: tuple[Arg, ...], b: tuple[Arg, ...]) -> tuple[Arg, ...]:
    if len(a) != len(b):
        raise Different(None)
    return tuple(_merge(x, y) for x, y in zip(a, b, strict=True))


def _merge_pairs(
    a: tuple[tuple[str, Arg], ...], b: tuple[tuple[str, Arg], ...]
) -> tuple[tuple[str, Arg], ...]:
    if [name for name, _ in a] != [name for name, _ in b]:
        raise Different(None)
    return tuple((name, _merge(x, y)) for (name, x), (_, y) in zip(a, b, strict=True))
