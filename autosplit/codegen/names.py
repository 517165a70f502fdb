"""Names of local variables: those of the model's source, else what the operation is called.

Each variable lives from the statement that sets it to the last that reads it; two variables
share a name when their lives do not meet, as ``x = layer(x)`` does.
"""

from __future__ import annotations

import keyword
from dataclasses import dataclass, field

from autosplit.codegen.expressions import (
    Attribute,
    Expr,
    Invoke,
    ModuleRef,
    Subscript,
    Value,
)
from autosplit.codegen.lists import PACKED
from autosplit.codegen.nouns import RESERVED, maker_of, noun, quantity, singular
from autosplit.codegen.operators import DEVICE, SYMBOL
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement

_END = 10**9


@dataclass(eq=False)
class _Variable:
    """Values that share one name, and the stretch of statements it is alive."""

    members: list[str]
    start: int
    end: int
    name: str = ""

    def touch(self, position: int) -> None:
        self.end = max(self.end, position)


@dataclass
class _Lives:
    """Variables of a scope by value."""

    of: dict[str, _Variable] = field(default_factory=dict)
    order: list[_Variable] = field(default_factory=list)

    def define(self, value: str, position: int) -> None:
        if value not in self.of:
            self.of[value] = _Variable([value], position, position)
            self.order.append(self.of[value])

    def read(self, value: str, position: int) -> None:
        if value in self.of:
            self.of[value].touch(position)

    def merge(self, into: str, value: str) -> None:
        kept, gone = self.of[into], self.of.get(value)
        if gone is kept:
            return
        if gone is None:
            self.of[value] = kept
            kept.members.append(value)
            return
        kept.start, kept.end = min(kept.start, gone.start), max(kept.end, gone.end)
        for member in gone.members:
            self.of[member] = kept
        kept.members += gone.members
        self.order.remove(gone)


def usable(name: str) -> bool:
    """Say whether a name of the model's source can be a variable."""
    return (
        name.isidentifier()
        and name.isascii()
        and not keyword.iskeyword(name)
        and name not in RESERVED
        and not name.startswith("__")
    )


def assign(graph: StageGraph, scope: Scope, taken: set[str], *, source: bool) -> set[str]:
    """Name the values of a scope.

    Parameters
    ----------
    taken
        Names no variable may have: helper functions and modules of the file.
    source
        Whether names of the model's source are used.

    Returns
    -------
    set[str]
        Values whose source name was still in use; written inside their reader they need none.
        When it is not empty the scope is to be built again.
    """
    lives = _lives(scope)
    occupied: dict[str, list[_Variable]] = {}
    loop_names = {
        name for name in (l_.variable for l_ in scope.body if isinstance(l_, Loop)) if name
    }
    forbidden = taken | loop_names
    crowded: set[str] = set()
    variables = sorted(lives.order, key=lambda each: each.start)
    wishes = {id(each): _wishes(graph, scope, each, source=source) for each in variables}
    _forget_loop_names(scope, lives, wishes)
    heirs = _heirs(scope, lives, wishes)
    for variable in sorted(variables, key=lambda each: not wishes[id(each)]):
        wished = wishes[id(variable)] or heirs.get(id(variable), [])
        wished = wished or (_names_elsewhere(graph, scope, variable) if source else [])
        free = [n for n in wished if n not in forbidden and _free(occupied, n, variable)]
        late = wishes[id(variable)] and free[:1] != wished[:1]
        if late and len(variable.members) == 1:
            crowded.add(variable.members[0])
        stem = noun(graph, scope, variable.members[0], wished)
        stem = wished[0] if _is_element(scope, variable) and wished else stem
        variable.name = free[0] if free else _numbered(stem, variable, occupied, forbidden)
        occupied.setdefault(variable.name, []).append(variable)
    scope.variables = {value: variable.name for value, variable in lives.of.items()}
    if scope.packed is not None:
        scope.variables[PACKED] = _unused("values", {*scope.variables.values(), *forbidden})
    return crowded


def _unused(stem: str, taken: set[str]) -> str:
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name


# ---------------------------------------------------------------- lives


def _lives(scope: Scope) -> _Lives:
    lives = _Lives()
    for value in scope.arguments():
        lives.define(value, -1)
    for symbol, (value, _) in scope.sizes.items():
        lives.define(SYMBOL + symbol, 0)
        lives.read(value, 0)
    position = 1
    for part in scope.body:
        if isinstance(part, Statement):
            _live_statement(lives, scope, part, position, position)
            position += 1
        else:
            position = _live_loop(lives, scope, part, position)
    for value in scope.results():
        lives.read(value, _END)
    return lives


def _live_statement(
    lives: _Lives, scope: Scope, statement: Statement, position: int, until: int
) -> None:
    for value in _reads(scope, statement):
        lives.read(value, until)
    for value in statement.made():
        lives.define(value, position)


def _live_loop(lives: _Lives, scope: Scope, loop: Loop, start: int) -> int:
    end = start + len(loop.body)
    first = {value for statement in loop.body for value in statement.made()}
    for initial in loop.carried.values():
        lives.read(initial, start)
    for offset, statement in enumerate(loop.body):
        for value in _reads(scope, statement):
            lives.read(value, start + offset if value in first else end)
        for value in statement.made():
            lives.define(value, start + offset)
    for statements in loop.rounds[1:]:
        for model, statement in zip(loop.body, statements, strict=True):
            for value in _reads(scope, statement):
                if value in lives.of and lives.of[value].start < start:
                    lives.read(value, end)
            for kept, made in zip(model.targets, statement.targets, strict=True):
                if kept is not None and made is not None:
                    lives.merge(kept, made)
    copied = {target for target, _ in loop.copies}
    for value, initial in loop.carried.items():
        lives.read(value, end)
        if value in copied:
            lives.of[value].start = start
        else:
            lives.merge(initial, value)
    return end + 1


def _reads(scope: Scope, statement: Statement) -> list[str]:
    found = []
    for leaf in statement.leaves():
        if isinstance(leaf, Value):
            found.append(leaf.name)
            if leaf.name == DEVICE and scope.device_of is not None:
                found.append(scope.device_of)
    if any(device for device, _ in statement.ambient.autocast) and scope.device_of:
        found.append(scope.device_of)
    return found


def _free(occupied: dict[str, list[_Variable]], name: str, variable: _Variable) -> bool:
    return all(
        variable.start != other.start
        and (variable.start >= other.end or other.start >= variable.end)
        for other in occupied.get(name, ())
    )


# ---------------------------------------------------------------- wishes


def _wishes(graph: StageGraph, scope: Scope, variable: _Variable, *, source: bool) -> list[str]:
    """Return names in order of preference."""
    special = next((v for v in variable.members if v.startswith("$")), None)
    if special is not None:
        return [quantity(special)]
    found: list[str] = []
    inputs = [value for value in variable.members if value in scope.inputs]
    if scope.kind == "stage":
        found += [value for value in inputs if _is_given(graph, value)]
    if source:
        arguments = set(scope.call.arg_names)
        for value in variable.members:
            names = graph.local_names(scope.call.index, value)
            if value in inputs:
                names = sorted(names, key=lambda name: name not in arguments)
            found += names
        if not found and inputs:
            found += _outer_names(graph, inputs[0])
    if source and inputs and _is_element(scope, variable) and not _is_given(graph, inputs[0]):
        found = _element_names(graph, scope, inputs[0]) or found
    names = [name for name in found if usable(name)]
    if not inputs:
        # What a loop carries is called as most of its rounds call it.
        names = sorted(names, key=names.count, reverse=True)
    return list(dict.fromkeys(names))


def _is_given(graph: StageGraph, value: str) -> bool:
    """Say whether a value is an input of the model."""
    node = graph.source(value)
    return node is not None and node.op == "input"


def _is_element(scope: Scope, variable: _Variable) -> bool:
    """Say whether a list is all that a variable is for."""
    return len(variable.members) == 1 and variable.members[0] in {
        value for elements in scope.lists.values() for value in elements
    }


def _element_names(graph: StageGraph, scope: Scope, value: str) -> list[str]:
    """Return what one element of the lists that a value is in may be called."""
    held = [name for name, elements in scope.lists.items() if value in elements]
    names = [name for each in held for name in graph.local_names(scope.call.index, each)]
    return [singular(name) for name in names if name.endswith("s")]


def _names_elsewhere(graph: StageGraph, scope: Scope, variable: _Variable) -> list[str]:
    """Return what the call that makes a value calls it, or the call that gets it from here."""
    found: list[str] = []
    for value in variable.members:
        maker = maker_of(scope, value)
        while maker is not None:
            found += graph.local_names(maker.call.index, value)
            maker = maker_of(maker, value)
        if value in scope.outputs and scope.call.parent is not None:
            found += graph.local_names(scope.call.parent, value)
    return [name for name in dict.fromkeys(found) if usable(name)]


def _forget_loop_names(scope: Scope, lives: _Lives, wishes: dict[int, list[str]]) -> None:
    """Drop names that several results of one statement had: those of a comprehension."""
    for part in scope.body:
        for statement in part.body if isinstance(part, Loop) else [part]:
            ids = [id(lives.of[value]) for value in statement.made() if value in lives.of]
            first = [wishes[each][0] for each in ids if wishes[each]]
            for each in ids:
                if wishes[each] and first.count(wishes[each][0]) > 1:
                    wishes[each] = []


def _heirs(scope: Scope, lives: _Lives, wishes: dict[int, list[str]]) -> dict[int, list[str]]:
    """Return for variables without a name of their own that of the only value made of them.

    ``query, key = x.split(...)`` reads better than parts with numbers when the next statement
    is ``query = query.view(...)``.
    """
    readers: dict[int, list[Statement | None]] = {}
    for part in scope.body:
        for statement in part.body if isinstance(part, Loop) else [part]:
            single = statement if isinstance(part, Statement) else None
            for value in dict.fromkeys(_reads(scope, statement)):
                if value in lives.of:
                    readers.setdefault(id(lives.of[value]), []).append(single)
    found: dict[int, list[str]] = {}
    for variable in lives.order:
        own = readers.get(id(variable), [])
        reader = own[0] if len(own) == 1 else None
        if wishes[id(variable)] or reader is None or variable.end == _END:
            continue
        if len(reader.targets) != 1 or reader.targets[0] not in lives.of:
            continue
        if _head(reader.expr) in variable.members:
            found[id(variable)] = wishes[id(lives.of[str(reader.targets[0])])]
    return found


def _head(expr: Expr) -> str | None:
    """Return the value that methods, subscripts and layers are applied to one after another."""
    while True:
        match expr:
            case Value(name):
                return name
            case Invoke(ModuleRef(), (argument,), ()):
                expr = argument
            case Invoke(Attribute(base, _), _, _) | Subscript(base, _):
                expr = base
            case _:
                return None


def _outer_names(graph: StageGraph, value: str) -> list[str]:
    """Return what other calls name a value that comes from outside."""
    return [name for names in graph.names.values() for name in names.get(value, [])[:1]][:1]


def _numbered(
    stem: str, variable: _Variable, occupied: dict[str, list[_Variable]], taken: set[str]
) -> str:
    name, number = stem, 1
    while name in taken or not _free(occupied, name, variable):
        number += 1
        name = f"{stem}_{number}"
    return name
