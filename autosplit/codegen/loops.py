"""Repeated statements over the elements of lists as loops.

Statements repeat with a period when their texts agree but for a list index that goes up by
one. Each value they read must come from the same round, from outside for all rounds alike, or
from the same place one round earlier; no value of a round may be read after the next one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace

from autosplit.codegen.expressions import (
    Expr,
    HelperRef,
    Leaf,
    ModuleRef,
    StateRef,
    Text,
    Value,
    leaves,
    transform,
)
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement

_LONGEST_PERIOD = 16
_MOST_LISTS = 3
_INDEX = re.compile(r"(?:(?<=\.)|^)\d+(?=\.|$)")


def fold_loops(
    graph: StageGraph, scope: Scope, statements: list[Statement]
) -> list[Statement | Loop]:
    """Return the statements with repetitions as loops."""
    shapes = [_shape(graph, scope, statement) for statement in statements]
    found: list[Statement | Loop] = []
    at = 0
    while at < len(statements):
        best = _best(graph, scope, statements, shapes, at)
        if best is None:
            found.append(statements[at])
            at += 1
        else:
            found.append(best)
            at += len(best.rounds) * len(best.body)
    return found


def _best(
    graph: StageGraph,
    scope: Scope,
    statements: list[Statement],
    shapes: list[Hashable],
    at: int,
) -> Loop | None:
    """Return the loop from ``at`` that replaces most statements."""
    best: Loop | None = None
    covered = 0
    for period in range(1, min(_LONGEST_PERIOD, (len(statements) - at) // 2) + 1):
        count = _repeats(shapes, at, period)
        while count >= 2 and count * period > covered:
            loop = _Rounds(graph, scope, statements, at, period, count).loop()
            if loop is not None:
                best, covered = loop, count * period
                break
            count -= 1
    return best


def _repeats(shapes: list[Hashable], at: int, period: int) -> int:
    first = shapes[at : at + period]
    count = 1
    while shapes[at + count * period : at + (count + 1) * period] == first:
        count += 1
    return count


def _shape(graph: StageGraph, scope: Scope, statement: Statement) -> Hashable:
    """Return a statement without values and list indices."""
    calls = {item.call.index: item.call.name for item in scope.items if isinstance(item, Scope)}

    def leaf(part: Leaf) -> Expr:
        match part:
            case Value():
                return Text("@")
            case ModuleRef(fqn):
                return ModuleRef(_INDEX.sub("#", fqn))
            case StateRef(fqn):
                return StateRef(_INDEX.sub("#", fqn))
            case HelperRef(call):
                return Text(calls.get(call, str(call)))
        return part

    place = None if statement.place is None else transform(statement.place, leaf)
    named = tuple(target is None for target in statement.targets)
    return transform(statement.expr, leaf), place, named, statement.ambient


class _Rounds:
    """A stretch of statements, tried as ``count`` rounds of ``period`` statements."""

    def __init__(
        self,
        graph: StageGraph,
        scope: Scope,
        statements: list[Statement],
        at: int,
        period: int,
        count: int,
    ) -> None:
        self.graph, self.scope = graph, scope
        self.rounds = [statements[at + k * period :][:period] for k in range(count)]
        self.after = statements[at + count * period :]
        self.made = [_made(statements_) for statements_ in self.rounds]
        self.all_made = {value for made in self.made for value in made}
        self.carried: dict[tuple[int, int], str] = {}
        self.carrying: dict[tuple[int, int], tuple[int, int]] = {}
        self.lists: dict[tuple[str, int], None] = {}
        self.just_carried: tuple[int, int] | None = None

    def loop(self) -> Loop | None:
        """Return the loop, or None if the rounds depend on one another in another way."""
        calls = False
        for place in range(len(self.rounds[0])):
            rows = [list(statements[place].leaves()) for statements in self.rounds]
            for at, column in enumerate(zip(*rows, strict=True)):
                calls = calls or isinstance(column[0], ModuleRef)
                if not self._agrees(column):
                    return None
                if self.just_carried is not None:
                    self.carrying[place, at] = self.just_carried
        if not calls or not (self.lists or self.carried) or len(self.lists) > _MOST_LISTS:
            return None
        if not self._forgets():
            return None
        carried = {self._value(place): initial for place, initial in self.carried.items()}
        body = [self._written(at, statement) for at, statement in enumerate(self.rounds[0])]
        loop = Loop(body, self.rounds, list(self.lists), carried, self._variable())
        loop.copies = self._copies(loop)
        return loop

    def _written(self, place: int, statement: Statement) -> Statement:
        """Return a statement of the first round that reads carried values by their own name."""
        at = -1

        def leaf(part: Leaf) -> Expr:
            nonlocal at
            at += 1
            carried = self.carrying.get((place, at))
            return part if carried is None else Value(self._value(carried))

        target = None if statement.place is None else transform(statement.place, leaf)
        return replace(statement, place=target, expr=transform(statement.expr, leaf))

    def _value(self, place: tuple[int, int]) -> str:
        target = self.rounds[0][place[0]].targets[place[1]]
        assert target is not None
        return target

    def _agrees(self, column: tuple[Leaf, ...]) -> bool:
        first = column[0]
        self.just_carried = None
        if isinstance(first, Value):
            return self._value_agrees([leaf.name for leaf in column if isinstance(leaf, Value)])
        if isinstance(first, ModuleRef | StateRef):
            names = [leaf.fqn for leaf in column if isinstance(leaf, ModuleRef | StateRef)]
            return self._names_agree(names)
        if isinstance(first, HelperRef):
            return len({self._body_of(leaf) for leaf in column}) == 1
        return all(leaf == first for leaf in column)

    def _body_of(self, leaf: Leaf) -> int:
        assert isinstance(leaf, HelperRef)
        return self.scope.same_helper.get(leaf.call, leaf.call)

    def _value_agrees(self, names: list[str]) -> bool:
        first = names[0]
        if first in self.made[0]:
            place = self.made[0][first]
            pairs = zip(self.made, names, strict=True)
            return all(made.get(name) == place for made, name in pairs)
        if all(name == first for name in names):
            return first not in self.all_made
        place = self.made[0].get(names[1], (-1, -1))
        pairs = zip(self.made, names[1:], strict=False)
        if place == (-1, -1) or any(made.get(name) != place for made, name in pairs):
            return False
        self.just_carried = place
        return self.carried.setdefault(place, first) == first and first not in self.all_made

    def _names_agree(self, names: list[str]) -> bool:
        if len(set(names)) == 1:
            return True
        parts = [name.split(".") for name in names]
        differ = [at for at in range(len(parts[0])) if len({part[at] for part in parts}) > 1]
        if len(differ) != 1 or not all(part[differ[0]].isdigit() for part in parts):
            return False
        at = differ[0]
        indices = [int(part[at]) for part in parts]
        if indices != list(range(indices[0], indices[0] + len(indices))):
            return False
        self.lists[".".join(parts[0][:at]), indices[0]] = None
        return True

    def _forgets(self) -> bool:
        """Say whether values of a round are read in it and, when carried, in the next alone."""
        reads = [[_reads(statement) for statement in statements] for statements in self.rounds]
        later = [value for statement in self.after for value in _reads(statement)]
        later += self.scope.outputs
        for at, made in enumerate(self.made[:-1]):
            for value, place in made.items():
                if value in later:
                    return False
                for distance, statements in enumerate(reads[at + 1 :]):
                    read = any(value in names for names in statements)
                    if read and (distance > 0 or place not in self.carried):
                        return False
        return True

    def _copies(self, loop: Loop) -> list[tuple[str, str]]:
        """Return carried values whose initial value is read after the loop takes its place."""
        later = {value for statement in self.after for value in _reads(statement)}
        later.update(self.scope.outputs)
        inside = {
            value
            for statements in loop.rounds[1:]
            for statement in statements
            for value in _reads(statement)
        }
        found, seen = [], set()
        for value, initial in loop.carried.items():
            if initial in later or initial in inside or initial in seen or initial.startswith("$"):
                found.append((value, initial))
            seen.add(initial)
        return found

    def _variable(self) -> str | None:
        """Return the name that held the module in the model's loop."""
        program = self.graph.program
        for statement in self.rounds[0]:
            for leaf in leaves(statement.expr):
                if isinstance(leaf, ModuleRef) and leaf.call is not None:
                    name = program.calls[leaf.call].loop_variable
                    if name:
                        return name
            if isinstance(statement.item, str):
                node = self.graph.nodes[statement.item]
                name = program.calls[node.calls[-1]].loop_variable
                if node.op == "module" and name:
                    return name
        return None


def _made(statements: list[Statement]) -> dict[str, tuple[int, int]]:
    return {
        value: (at, place)
        for at, statement in enumerate(statements)
        for place, value in enumerate(statement.targets)
        if value is not None
    }


def _reads(statement: Statement) -> set[str]:
    return {leaf.name for leaf in statement.leaves() if isinstance(leaf, Value)}
