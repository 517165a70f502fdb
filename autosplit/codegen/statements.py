"""From the items of a scope to statements: what gets a name, and what is written in place.

A value without a name in the model's source was part of a larger expression there; it goes
back into the one operation that reads it, unless that would change the order of effects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autosplit.codegen.expressions import (
    Expr,
    HelperRef,
    Invoke,
    Leaf,
    ModuleRef,
    StateRef,
    Text,
    Value,
    transform,
    values,
)
from autosplit.codegen.lists import is_listed
from autosplit.codegen.operators import TRAINING, Operation, operation
from autosplit.codegen.scopes import Scope, StageGraph, Statement
from autosplit.codegen.spelling import show
from autosplit.program import Ambient, Arg, Dim, Node, Sequence, Size

_UNPACK = 8
"""Longest tuple that is unpacked into names when few of its elements are read."""

_CHAINED = {
    "contiguous",
    "expand",
    "flatten",
    "float",
    "permute",
    "reshape",
    "squeeze",
    "to",
    "transpose",
    "unflatten",
    "unsqueeze",
    "view",
}


@dataclass(frozen=True)
class Plan:
    """What the statements of a scope are made from.

    Parameters
    ----------
    code
        Code of each item.
    made
        Item that makes each value, by position.
    readers
        Positions of the items that read each value, repeats included; a returned value has
        one more reader, after all items.
    unpacked
        Tuples whose elements get names at once, with the element operations by index.
    """

    code: list[Operation]
    made: dict[str, int]
    readers: dict[str, list[int]]
    unpacked: dict[str, dict[int, str]]


def statements(
    graph: StageGraph, scope: Scope, *, fold: bool, chain: bool, forced: set[str]
) -> list[Statement]:
    """Return the statements of a scope.

    Parameters
    ----------
    fold
        Whether values without a source name go into their reader.
    chain
        Whether ``x.view(...)`` and ``.transpose(...)`` of one variable become one statement.
    forced
        Values that go into their reader although they have a name.
    """
    plan = _plan(graph, scope)
    folded = _folded(graph, scope, plan, chain=chain, forced=forced) if fold else set()
    found: list[Statement] = []
    for position, item in enumerate(scope.items):
        if folded.intersection(_results(item)):
            continue
        code = plan.code[position]
        if isinstance(item, str) and _is_element(graph, plan, item):
            if item not in plan.unpacked:
                continue
            code = Operation(Value(item))
        expr = _fill(graph, scope, plan, folded, code.expr)
        place = None if code.place is None else _fill(graph, scope, plan, folded, code.place)
        targets = () if place is not None else _targets(graph, plan, item)
        found.append(Statement(targets, expr, item, place, ambient_of(graph, scope, item)))
    return found


def ambient_of(graph: StageGraph, scope: Scope, item: str | Scope) -> Ambient:
    """Return the global state an item needs where it is written."""
    return item.ambient if isinstance(item, Scope) else graph.nodes[item].ambient


# ---------------------------------------------------------------- reading the items


def _plan(graph: StageGraph, scope: Scope) -> Plan:
    code = [_code(graph, scope, item) for item in scope.items]
    made = {name: at for at, item in enumerate(scope.items) for name in _results(item)}
    readers: dict[str, list[int]] = {}
    for at, operation_ in enumerate(code):
        for part in (operation_.expr, operation_.place):
            for value in values(part) if part is not None else ():
                readers.setdefault(value, []).append(at)
    for value in scope.outputs:
        readers.setdefault(value, []).append(len(code))
    return Plan(code, made, readers, _unpacked(graph, scope, readers))


def _code(graph: StageGraph, scope: Scope, item: str | Scope) -> Operation:
    if isinstance(item, str):
        return operation(_with_kept_sizes(graph, graph.nodes[item]))
    args = _passed(item)
    if item.kind == "function":
        return Operation(Invoke(HelperRef(item.call.index), args))
    return Operation(Invoke(ModuleRef(item.fqn, item.call.index), args))


def _with_kept_sizes(graph: StageGraph, node: Node) -> Node:
    """Return a reshape that says which leading sizes are those of its input.

    They are no numbers of the model, whatever attribute happens to have their value.
    """
    method = node.target.rpartition(".")[2]
    before = graph.tensor(node.inputs()[0]) if node.inputs() else None
    if method not in ("view", "reshape") or before is None:
        return node
    given = node.args[1:]
    packed = given[0] if len(given) == 1 and isinstance(given[0], Sequence) else None
    sizes = given if packed is None else packed.items
    kept = 0
    while kept < min(len(sizes), len(before.shape)) and _same(sizes[kept], before.shape[kept]):
        kept += 1
    marked = tuple(Size(str(size)) if isinstance(size, int) else size for size in sizes[:kept])
    marked += sizes[kept:]
    rest = marked if packed is None else (Sequence(packed.kind, marked),)
    return replace(node, args=(node.args[0], *rest))


def _same(size: Arg, dim: Dim) -> bool:
    return size == dim or (isinstance(size, Size) and size.expression == dim)


def _passed(scope: Scope) -> tuple[Expr, ...]:
    """Return the arguments of a call, those that are left out at its end excepted."""
    if scope.model is None:
        return tuple(Value(value) for value in scope.inputs)
    return tuple(Value(value) for value in scope.passed if value is not None)


def _results(item: str | Scope) -> list[str]:
    return item.outputs if isinstance(item, Scope) else [item]


def _unpacked(
    graph: StageGraph, scope: Scope, readers: dict[str, list[int]]
) -> dict[str, dict[int, str]]:
    """Find tuples that are read by element alone."""
    found: dict[str, dict[int, str]] = {}
    for item in scope.items:
        if isinstance(item, Scope) or not isinstance(graph.nodes[item].value, tuple):
            continue
        users = [scope.items[at] for at in readers.get(item, []) if at < len(scope.items)]
        if not users or len(users) != len(readers[item]):
            continue
        elements: dict[int, str] = {}
        for user in users:
            index = _element_index(graph, user, item)
            if index is None or index in elements:
                break
            elements[index] = str(user)
        else:
            length = len(graph.nodes[item].value or ())  # type: ignore[arg-type]
            if max(elements) < length and (length <= _UNPACK or len(elements) == length):
                found[item] = elements
    return found


def _element_index(graph: StageGraph, user: str | Scope, maker: str) -> int | None:
    if isinstance(user, Scope):
        return None
    node = graph.nodes[user]
    if node.target != "operator.getitem" or node.inputs() != (maker,):
        return None
    index = node.args[1]
    return index if isinstance(index, int) and index >= 0 else None


def _is_element(graph: StageGraph, plan: Plan, item: str | Scope) -> bool:
    if isinstance(item, Scope):
        return False
    return any(item == name for name in _elements_of(graph, plan, item))


def _elements_of(graph: StageGraph, plan: Plan, item: str) -> list[str]:
    node = graph.nodes[item]
    if node.target != "operator.getitem" or not node.inputs():
        return []
    return list(plan.unpacked.get(node.inputs()[0], {}).values())


def _targets(graph: StageGraph, plan: Plan, item: str | Scope) -> tuple[str | None, ...]:
    if isinstance(item, Scope):
        return tuple(item.outputs)
    if item in plan.unpacked:
        elements = plan.unpacked[item]
        value = graph.nodes[item].value
        length = len(value) if isinstance(value, tuple) else max(elements) + 1
        return tuple(elements.get(index) for index in range(length))
    return (item,) if plan.readers.get(item) else ()


# ---------------------------------------------------------------- folding


def _folded(
    graph: StageGraph, scope: Scope, plan: Plan, *, chain: bool, forced: set[str]
) -> set[str]:
    effects = [_any(graph.effect, item) for item in scope.items]
    writes = [_any(graph.writes, item) for item in scope.items]
    found: set[str] = set()
    for value, at in plan.made.items():
        reader = _only_reader(graph, scope, plan, value, at)
        if reader is None or not _movable(effects, writes, at, reader):
            continue
        item, user = scope.items[at], scope.items[reader]
        if ambient_of(graph, scope, item) != ambient_of(graph, scope, user):
            continue
        named = bool(graph.local_names(scope.call.index, value)) or is_listed(graph, scope, value)
        if _are_siblings(graph, item, user) and not named:
            continue
        if value in forced or not named or (chain and _chains(graph, scope, plan, value, reader)):
            found.add(value)
            effects[reader] = effects[reader] or effects[at]
            writes[reader] = writes[reader] or writes[at]
    return found


def _any(test: object, item: str | Scope) -> bool:
    names = item.nodes() if isinstance(item, Scope) else (item,)
    return any(test(name) for name in names)  # type: ignore[operator]


def _only_reader(graph: StageGraph, scope: Scope, plan: Plan, value: str, at: int) -> int | None:
    """Return the one item that reads a value once, if the value may stand there."""
    positions = plan.readers.get(value, [])
    if len(positions) != 1 or positions[0] >= len(scope.items):
        return None
    item = scope.items[at]
    if isinstance(item, Scope):
        return positions[0] if len(item.outputs) == 1 else None
    if item in plan.unpacked or _is_element(graph, plan, item) or plan.code[at].place is not None:
        return None
    return positions[0]


def _movable(effects: list[bool], writes: list[bool], at: int, reader: int) -> bool:
    """Say whether the item at ``at`` may run where ``reader`` does.

    An effect passes no other effect, a write passes nothing, and no reading passes a write.
    """
    if writes[at]:
        return reader == at + 1
    if effects[at] and any(effects[at + 1 : reader]):
        return False
    return not any(writes[at + 1 : reader])


def _are_siblings(graph: StageGraph, item: str | Scope, user: str | Scope) -> bool:
    """Say whether both are calls of neighbours in one list, which a loop may walk."""
    names = [_called(graph, each) for each in (item, user)]
    if None in names:
        return False
    (head, _, key), (other, _, other_key) = (str(name).rpartition(".") for name in names)
    return head == other and key.isdigit() and other_key.isdigit()


def _called(graph: StageGraph, item: str | Scope) -> str | None:
    if isinstance(item, Scope):
        return item.fqn if item.kind != "function" else None
    node = graph.nodes[item]
    return node.target if node.op == "module" else None


def _chains(graph: StageGraph, scope: Scope, plan: Plan, value: str, reader: int) -> bool:
    """Say whether value and reader are methods of one chain on one variable."""
    item, user = scope.items[plan.made[value]], scope.items[reader]
    if isinstance(item, Scope) or isinstance(user, Scope):
        return False
    methods = [graph.nodes[name].target.rpartition(".")[2] for name in (item, user)]
    if not _CHAINED.issuperset(methods) or graph.nodes[user].inputs()[:1] != (value,):
        return False
    names, user_names = (graph.local_names(scope.call.index, name) for name in (item, user))
    return not user_names or user_names[:1] == names[:1]


def _fill(graph: StageGraph, scope: Scope, plan: Plan, folded: set[str], expr: Expr) -> Expr:
    """Put folded values and the scope's own state into an expression."""

    def leaf(part: Leaf) -> Expr:
        if isinstance(part, ModuleRef) and part.call is None:
            return ModuleRef(_module_name(graph, scope, part.fqn))
        if not isinstance(part, Value):
            return part
        if part.name in folded:
            return _fill(graph, scope, plan, folded, plan.code[plan.made[part.name]].expr)
        if part.name == TRAINING and scope.owns_modules:
            return Text("self.training")
        name = graph.state(part.name)
        held = (
            None if name is None or not scope.owns_modules else graph.held_state(name, scope.prefix)
        )
        return part if held is None else StateRef(held)

    return transform(expr, leaf)


def _module_name(graph: StageGraph, scope: Scope, fqn: str) -> str:
    return graph.held_module(fqn, scope.prefix) or fqn


def length(statement: Statement) -> int:
    """Return a rough width of a statement, to judge what is too much for one."""
    return len(show(transform(statement.expr, lambda leaf: Text("value"))))
