"""What a container is built with: equal members as a comprehension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Attribute,
    Binary,
    Comprehension,
    DictDisplay,
    Display,
    Expr,
    Invoke,
    Leaf,
    Number,
    Text,
    Unary,
    call,
    leaves,
    transform,
)
from autosplit.codegen.originals import counted, position
from autosplit.codegen.spelling import quote

_FEWEST_RISING = 4
"""Shortest stretch that is written with a formula of its index."""


def container(kind: str, names: list[str], parts: list[Expr]) -> Expr:
    """Return the constructor of a container of torch with its members."""
    owner = {
        "list": "nn.ModuleList",
        "dict": "nn.ModuleDict",
        "parameter list": "nn.ParameterList",
        "parameter dict": "nn.ParameterDict",
    }.get(kind)
    if owner is None:
        raise CodegenError(f"no container of kind {kind!r}")
    if kind.endswith("list"):
        return call(owner, _list(parts))
    return call(owner, _dict(names, parts))


def _runs(parts: list[Expr], names: list[str] | None = None) -> Iterator[tuple[int, int]]:
    """Yield ``(start, stop)`` of stretches of like parts under consecutive names."""
    start = 0
    while start < len(parts):
        limit = len(parts) if names is None else _last_consecutive(names, start) + 1
        stop = start + 1
        while stop < limit and _alike(parts[start], parts[stop], stop - start):
            stop += 1
        if stop == start + 1:
            stop = _end_of_rise(parts[:limit], start)
        yield start, stop
        start = stop


def _last_consecutive(names: list[str], at: int) -> int:
    numbers = [int(name) if name.isdigit() else None for name in names]
    here = numbers[at]
    while here is not None and at + 1 < len(names) and numbers[at + 1] == here + 1:
        at, here = at + 1, here + 1
    return at


def _end_of_rise(parts: list[Expr], start: int) -> int:
    """Return where a stretch ends in which numbers rise evenly, if it is worth a formula."""
    stop = start + 1
    step = _step(parts[start], parts[stop]) if stop < len(parts) else None
    while step is not None and stop < len(parts) and _step(parts[stop - 1], parts[stop]) == step:
        stop += 1
    return stop if stop - start >= _FEWEST_RISING else start + 1


def _step(part: Expr, other: Expr) -> tuple[int, ...] | None:
    """Return by how much each number of a part rises; None if parts differ in more."""
    if transform(part, _blank) != transform(other, _blank):
        return None
    pairs = zip(_numbers(part), _numbers(other), strict=True)
    return tuple(after - before for before, after in pairs)


def _blank(leaf: Leaf) -> Expr:
    return Text("#") if isinstance(leaf, Number) and isinstance(leaf.value, int) else leaf


def _numbers(part: Expr) -> list[int]:
    found = [leaf.value for leaf in leaves(part) if isinstance(leaf, Number)]
    return [value for value in found if isinstance(value, int)]


def _risen(part: Expr, step: tuple[int, ...], first: int) -> Expr:
    """Return a part with its numbers as formulas of ``i``, which is ``first`` for this one."""
    steps = iter(step)

    def leaf(each: Leaf) -> Expr:
        if not isinstance(each, Number) or not isinstance(each.value, int):
            return each
        by = next(steps)
        if by == 0:
            return each
        start = each.value - by * first
        rise = Text("i") if abs(by) == 1 else Binary("*", Text(str(abs(by))), Text("i"))
        return Binary("+" if by > 0 else "-", Text(str(start)), rise) if start or by < 0 else rise

    return transform(part, leaf)


def _alike(first: Expr, other: Expr, distance: int) -> bool:
    """Say whether parts are equal, or modules of the model so far from one another in a list."""
    found, there = position(first), position(other)
    if found is None or there is None:
        return first == other
    return there == (found[0], found[1] + distance)


def _repeated(kind: Literal["list", "bare"], parts: list[Expr]) -> Comprehension:
    """Return like parts as a comprehension."""
    found = position(parts[0])
    if found is not None:
        head, first = found
        return Comprehension(kind, counted(head, "i"), "i", _range(first, first + len(parts)))
    if parts[0] == parts[1]:
        return Comprehension(kind, parts[0], "_", _range(0, len(parts)))
    step = _step(parts[0], parts[1]) or ()
    return Comprehension(kind, _risen(parts[0], step, 0), "i", _range(0, len(parts)))


def _list(parts: list[Expr]) -> Expr:
    runs = list(_runs(parts))
    if len(runs) == 1 and len(parts) > 1:
        return _repeated("list", parts)
    return Display("list", tuple(repeats(parts)))


def repeats(parts: list[Expr]) -> list[Expr]:
    """Return parts with stretches of equal ones as ``*(part for _ in range(n))``."""
    items: list[Expr] = []
    for start, stop in _runs(parts):
        if stop - start < 2:
            items.append(parts[start])
        else:
            repeat = _repeated("bare", parts[start:stop])
            items.append(Unary("*", Invoke(Text(""), (repeat,))))
    return items


def short(expr: Expr) -> Expr:
    """Return a constructor with equal parts of each ``nn.Sequential`` in it said once."""
    match expr:
        case Invoke(Attribute(Text("nn"), "Sequential") as function, args, ()):
            return Invoke(function, tuple(repeats([short(arg) for arg in args])))
    return expr


def _dict(names: list[str], parts: list[Expr]) -> Expr:
    runs = list(_runs(parts, names))
    pairs: list[tuple[Expr | None, Expr]] = []
    for start, stop in runs:
        if stop - start < 2:
            pairs.append((Text(quote(names[start])), parts[start]))
            continue
        key = call("str", Text("i"))
        first = int(names[start])
        found = position(parts[start])
        step = _step(parts[start], parts[start + 1]) or ()
        part = _risen(parts[start], step, first) if found is None else counted(found[0], "i")
        spread = Comprehension("dict", part, "i", _range(first, first + stop - start), key)
        if len(runs) == 1:
            return spread
        pairs.append((None, spread))
    return DictDisplay(tuple(pairs))


def _range(start: int, stop: int) -> Expr:
    bounds = (stop,) if start == 0 else (start, stop)
    return call("range", *(Text(str(bound)) for bound in bounds))
