"""What two bodies must agree in to be one: everything but numbers and the names of values."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Expr,
    HelperRef,
    Leaf,
    ModuleRef,
    Number,
    StateRef,
    Text,
    Value,
    transform,
)
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement

_MOST_ARGUMENTS = 6


def body_skeleton(
    graph: StageGraph,
    scope: Scope,
    helper_key: Callable[[int], str],
    slots: list[Number],
    method: Callable[[int], int],
) -> Hashable:
    """Return a body with values numbered, names relative and numbers moved to ``slots``."""
    numbers: dict[str, int] = {}

    def number(value: str | None) -> int:
        return -1 if value is None else numbers.setdefault(value, len(numbers))

    def leaf(part: Leaf) -> Expr:
        match part:
            case Value(name):
                return Text(f"@{number(name)}")
            case Number(value):
                slots.append(part)
                return Text(f"#{type(value).__name__}")
            case ModuleRef(fqn, call_index):
                chosen = 0 if call_index is None else method(call_index)
                return Text(f".{fqn[len(scope.prefix) :]}:{chosen}")
            case StateRef(fqn):
                return Text(f".{fqn[len(scope.prefix) :]}")
            case HelperRef(call_index):
                return Text(helper_key(call_index))
        return part

    def line(statement: Statement) -> Hashable:
        place = None if statement.place is None else transform(statement.place, leaf)
        expr = transform(statement.expr, leaf)
        targets = tuple(map(number, statement.targets))
        return statement.ambient, targets, place, expr, number(statement.guard)

    head = tuple((number(value), value in scope.optional) for value in scope.inputs)
    sizes = tuple((number(f"$symbol:{s}"), number(v), d) for s, (v, d) in scope.sizes.items())
    device = number(scope.device_of)
    body: list[Hashable] = []
    for part in scope.body:
        if isinstance(part, Statement):
            body.append(line(part))
        else:
            lists = tuple((name[len(scope.prefix) :], at) for name, at in part.lists)
            carried = tuple((number(v), number(i)) for v, i in part.carried.items())
            _check_methods(part, method)
            body.append((len(part.rounds), lists, carried, tuple(map(line, part.body))))
            for statements in part.rounds[1:]:
                for model, other in zip(part.body, statements, strict=True):
                    for kept, value in zip(model.targets, other.targets, strict=True):
                        if kept is not None and value is not None:
                            numbers[value] = numbers[kept]
    results = tuple(transform(expr, leaf) for expr in scope.returned or ())
    outputs = tuple(map(number, scope.outputs))
    return head, sizes, device, scope.ambient, tuple(body), outputs, results


def _check_methods(loop: Loop, method: Callable[[int], int]) -> None:
    """Refuse a loop whose rounds call different methods of their modules."""
    chosen = {
        tuple(
            0 if leaf.call is None else method(leaf.call)
            for statement in statements
            for leaf in statement.leaves()
            if isinstance(leaf, ModuleRef)
        )
        for statements in loop.rounds
    }
    if len(chosen) > 1:
        raise CodegenError("a loop would call different methods of its modules")
