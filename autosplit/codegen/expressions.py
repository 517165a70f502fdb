"""Expressions of the emitted code as trees; they become text in the last step only.

Leaves stand for things whose spelling depends on where the expression ends up: a value has a
name per scope, a module a path per class, a number may turn into a constructor argument.
``transform`` puts the spelling in; ``show`` and the layout write trees that hold ``Text`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

# ---------------------------------------------------------------- leaves


@dataclass(frozen=True, slots=True)
class Text:
    """Finished source text of one atom: a name, a literal, a path."""

    text: str


@dataclass(frozen=True, slots=True)
class Number:
    """A number of the model; ``hint`` is what to call it when it becomes an argument."""

    value: int | float
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """What a node computed, or one of the quantities of ``codegen.scopes`` (``$device``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Elements:
    """A list or tuple of values, while loops are looked for: rounds may see it grow."""

    kind: Literal["list", "tuple"]
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModuleRef:
    """A module that is called; ``call`` is the scope's call when the class is emitted too."""

    fqn: str
    call: int | None = None


@dataclass(frozen=True, slots=True)
class StateRef:
    """A parameter, buffer or constant of the class."""

    fqn: str


@dataclass(frozen=True, slots=True)
class HelperRef:
    """A helper function; ``call`` is the call whose body it holds."""

    call: int


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class of the file, by its number."""

    index: int


# ---------------------------------------------------------------- composites


@dataclass(frozen=True, slots=True)
class Attribute:
    """``base.name``."""

    base: Expr
    name: str


@dataclass(frozen=True, slots=True)
class Subscript:
    """``base[items]``."""

    base: Expr
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """``start:stop:step`` inside a subscript."""

    start: Expr | None
    stop: Expr | None
    step: Expr | None


@dataclass(frozen=True, slots=True)
class Invoke:
    """``function(args, name=value)``."""

    function: Expr
    args: tuple[Expr, ...] = ()
    kwargs: tuple[tuple[str, Expr], ...] = ()


@dataclass(frozen=True, slots=True)
class Unary:
    """``-operand``, ``~operand`` or ``*operand``."""

    op: Literal["-", "~", "*", "**", "not "]
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary:
    """``left op right``."""

    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class Conditional:
    """``then if test else other``."""

    then: Expr
    test: Expr
    other: Expr


@dataclass(frozen=True, slots=True)
class Display:
    """A list, tuple or bare tuple (``a, b``)."""

    kind: Literal["list", "tuple", "bare"]
    items: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class DictDisplay:
    """``{key: value}``; a pair with key None is ``**value``."""

    items: tuple[tuple[Expr | None, Expr], ...]


@dataclass(frozen=True, slots=True)
class Comprehension:
    """``element for target in iterable``, as a list, a dict (with ``key``) or an argument."""

    kind: Literal["list", "dict", "bare"]
    element: Expr
    target: str
    iterable: Expr
    key: Expr | None = None


Leaf: TypeAlias = Text | Number | Value | Elements | ModuleRef | StateRef | HelperRef | ClassRef
Expr: TypeAlias = (
    Leaf
    | Attribute
    | Subscript
    | Range
    | Invoke
    | Unary
    | Binary
    | Conditional
    | Display
    | DictDisplay
    | Comprehension
)

LEAVES = (Text, Number, Value, Elements, ModuleRef, StateRef, HelperRef, ClassRef)

NONE = Text("None")


def transform(expr: Expr, leaf: Callable[[Leaf], Expr]) -> Expr:
    """Return ``expr`` with every leaf replaced by ``leaf(it)``, left to right."""
    if isinstance(expr, LEAVES):
        return leaf(expr)
    return _with_parts(expr, lambda part: transform(part, leaf))


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """Return ``expr`` with each part that is no leaf replaced by ``change(it)``, inner first."""
    if isinstance(expr, LEAVES):
        return expr
    return change(_with_parts(expr, lambda part: rebuild(part, change)))


def _with_parts(expr: Expr, go: Callable[[Expr], Expr]) -> Expr:
    """Return a composite with ``go`` of each of its parts, left to right."""

    def maybe(part: Expr | None) -> Expr | None:
        return None if part is None else go(part)

    match expr:
        case Attribute(base, name):
            return Attribute(go(base), name)
        case Subscript(base, items):
            return Subscript(go(base), tuple(map(go, items)))
        case Range(start, stop, step):
            return Range(maybe(start), maybe(stop), maybe(step))
        case Invoke(function, args, kwargs):
            head = go(function)
            return Invoke(head, tuple(map(go, args)), tuple((k, go(v)) for k, v in kwargs))
        case Unary(op, operand):
            return Unary(op, go(operand))
        case Binary(op, left, right):
            return Binary(op, go(left), go(right))
        case Conditional(then, test, other):
            return Conditional(go(then), go(test), go(other))
        case Display(kind, items):
            return Display(kind, tuple(map(go, items)))
        case DictDisplay(pairs):
            return DictDisplay(tuple((maybe(k), go(v)) for k, v in pairs))
        case Comprehension(kind, element, target, iterable, key):
            first = maybe(key)
            return Comprehension(kind, go(element), target, go(iterable), first)
    raise TypeError(f"{expr!r} is not an expression")


def leaves(expr: Expr) -> Iterator[Leaf]:
    """Yield the leaves of ``expr``, left to right."""
    found: list[Leaf] = []

    def keep(leaf: Leaf) -> Expr:
        found.append(leaf)
        return leaf

    transform(expr, keep)
    return iter(found)


def values(expr: Expr) -> Iterator[str]:
    """Yield the value names ``expr`` reads, repeats included."""
    return (leaf.name for leaf in leaves(expr) if isinstance(leaf, Value))


# ---------------------------------------------------------------- building


def dotted(path: str) -> Expr:
    """Return ``a.b.c`` as a tree of attributes."""
    head, *rest = path.split(".")
    expr: Expr = Text(head)
    for name in rest:
        expr = Attribute(expr, name)
    return expr


def call(path: str, *args: Expr, **kwargs: Expr) -> Invoke:
    """Return a call of a dotted name."""
    return Invoke(dotted(path), args, tuple(kwargs.items()))


def starred(items: Comprehension) -> Expr:
    """Return ``*(...)`` for use inside a display or a call."""
    return Unary("*", cast(Expr, items))
