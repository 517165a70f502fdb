"""What a container is built with: equal members as a comprehension."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Attribute,
    Comprehension,
    DictDisplay,
    Display,
    Expr,
    Invoke,
    Text,
    Unary,
    call,
)
from autosplit.codegen.originals import counted, position
from autosplit.codegen.spelling import quote


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
    for at in range(1, len(parts) + 1):
        follows = at < len(parts) and _alike(parts[start], parts[at], at - start)
        if follows and names is not None:
            before, name = names[at - 1], names[at]
            follows = before.isdigit() and name.isdigit() and int(name) == int(before) + 1
        if not follows:
            yield start, at
            start = at


def _alike(first: Expr, other: Expr, distance: int) -> bool:
    """Say whether parts are equal, or modules of the model so far from one another in a list."""
    found, there = position(first), position(other)
    if found is None or there is None:
        return first == other
    return there == (found[0], found[1] + distance)


def _repeated(kind: Literal["list", "bare"], part: Expr, count: int) -> Comprehension:
    """Return ``count`` parts like ``part`` as a comprehension."""
    found = position(part)
    if found is None:
        return Comprehension(kind, part, "_", _range(0, count))
    head, first = found
    return Comprehension(kind, counted(head, "i"), "i", _range(first, first + count))


def _list(parts: list[Expr]) -> Expr:
    runs = list(_runs(parts))
    if len(runs) == 1 and len(parts) > 1:
        return _repeated("list", parts[0], len(parts))
    return Display("list", tuple(repeats(parts)))


def repeats(parts: list[Expr]) -> list[Expr]:
    """Return parts with stretches of equal ones as ``*(part for _ in range(n))``."""
    items: list[Expr] = []
    for start, stop in _runs(parts):
        if stop - start < 2:
            items.append(parts[start])
        else:
            repeat = _repeated("bare", parts[start], stop - start)
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
        part = parts[start] if found is None else counted(found[0], "i")
        spread = Comprehension("dict", part, "i", _range(first, first + stop - start), key)
        if len(runs) == 1:
            return spread
        pairs.append((None, spread))
    return DictDisplay(tuple(pairs))


def _range(start: int, stop: int) -> Expr:
    bounds = (stop,) if start == 0 else (start, stop)
    return call("range", *(Text(str(bound)) for bound in bounds))
