"""Repeated statements over the elements of lists as loops.

Statements repeat with a period when their texts agree but for a list index that goes up by
one. Each value they read must come from the same round, from outside for all rounds alike, or
from the same place one round earlier; no value of a round may be read after the next one.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import replace

from autosplit.codegen import lists
from autosplit.codegen.expressions import (
    Elements,
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
    """Return the statements with repetitions as loops, and the lists these fill or empty."""
    packed = [lists.pack(statement) for statement in statements]
    refused: set[str] = set()
    while True:
        found = lists.Writer(graph, scope, _fold(graph, scope, packed, refused))
        if not found.refused - refused:
            return found.parts
        refused |= found.refused


def _fold(
    graph: StageGraph, scope: Scope, statements: list[Statement], refused: set[str]
) -> list[Statement | Loop]:
    shapes = [_shape(graph, scope, statement) for statement in statements]
    found: list[Statement | Loop] = []
    at = 0
    while at < len(statements):
        best = _best(graph, scope, statements, shapes, at, refused)
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
    refused: set[str],
) -> Loop | None:
    """Return the loop from ``at`` that replaces most statements."""
    best: Loop | None = None
    covered = 0
    for period in range(1, min(_LONGEST_PERIOD, (len(statements) - at) // 2) + 1):
        count = _repeats(shapes, at, period)
        while count >= 2 and count * period > covered:
            loop = _Rounds(graph, scope, statements, at, period, count).loop(refused)
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
            case Elements(kind):
                return Text(f"{kind} of @")
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
        self.carrying: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        self.lists: dict[tuple[str, int], None] = {}
        self.here = (0, 0)
        self.gathers: dict[tuple[int, int], tuple[str, ...] | None] = {}
        self.growing: dict[tuple[int, int], tuple[int, int]] = {}
        self.pops: dict[tuple[int, int], tuple[str, ...]] = {}

    def loop(self, refused: set[str]) -> Loop | None:
        """Return the loop, or None if the rounds depend on one another in another way.

        Parameters
        ----------
        refused
            First values of lists that are not to be.
        """
        calls = False
        for place in range(len(self.rounds[0])):
            rows = [list(statements[place].leaves()) for statements in self.rounds]
            for at, column in enumerate(zip(*rows, strict=True)):
                self.here = (place, at)
                calls = calls or isinstance(column[0], ModuleRef)
                if not self._agrees(column):
                    return None
        if not calls or not (self.lists or self.carried) or len(self.lists) > _MOST_LISTS:
            return None
        self._gather()
        if refused.intersection(map(self._value, self.gathers)):
            return None
        carried = {self._value(place): initial for place, initial in self.carried.items()}
        body = [self._written(at, statement) for at, statement in enumerate(self.rounds[0])]
        loop = Loop(body, self.rounds, list(self.lists), carried, self._variable())
        loop.gathers, loop.growing, loop.pops = self.gathers, self.growing, self.pops
        return loop

    def _written(self, place: int, statement: Statement) -> Statement:
        """Return a statement of the first round that reads carried values by their own name."""
        at = -1

        def leaf(part: Leaf) -> Expr:
            nonlocal at
            at += 1
            carried = self.carrying.get((place, at), {})
            names = {name: self._value(maker) for name, maker in carried.items()}
            if isinstance(part, Elements):
                return replace(part, names=tuple(names.get(name, name) for name in part.names))
            return Value(names.get(part.name, part.name)) if isinstance(part, Value) else part

        target = None if statement.place is None else transform(statement.place, leaf)
        return replace(statement, place=target, expr=transform(statement.expr, leaf))

    def _value(self, place: tuple[int, int]) -> str:
        target = self.rounds[0][place[0]].targets[place[1]]
        assert target is not None
        return target

    def _agrees(self, column: tuple[Leaf, ...]) -> bool:
        first = column[0]
        if isinstance(first, Value):
            names = [leaf.name for leaf in column if isinstance(leaf, Value)]
            return self._value_agrees(names) or self._pops(names)
        if isinstance(first, Elements):
            return self._elements_agree(
                [leaf.names for leaf in column if isinstance(leaf, Elements)]
            )
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
        self.carrying.setdefault(self.here, {})[first] = place
        return self.carried.setdefault(place, first) == first and first not in self.all_made

    def _elements_agree(self, rows: list[tuple[str, ...]]) -> bool:
        if len({len(row) for row in rows}) == 1:
            return all(self._value_agrees(list(column)) for column in zip(*rows, strict=True))
        return any(self._grows(rows, start) for start in range(len(rows[0]) + 1))

    def _grows(self, rows: list[tuple[str, ...]], start: int) -> bool:
        """Say whether each round lists ``start`` values, those of rounds before, and others."""
        before, place = rows[0][:start], self.made[0].get(rows[1][start] if rows[1][start:] else "")
        if place is None or self.all_made.intersection(before):
            return False
        made = [self.rounds[k][place[0]].targets[place[1]] for k in range(len(rows))]
        heads = [(*before, *made[:k]) for k in range(len(rows))]
        if any(row[: len(head)] != head for row, head in zip(rows, heads, strict=True)):
            return False
        tails = [list(row[len(head) :]) for row, head in zip(rows, heads, strict=True)]
        if len({len(tail) for tail in tails}) > 1 or self.gathers.get(place, before) != before:
            return False
        self.gathers[place] = before
        self.growing[self.here] = place
        return all(self._value_agrees(list(column)) for column in zip(*tails, strict=True))

    def _pops(self, names: list[str]) -> bool:
        """Say whether rounds take elements of one list from its end, a value each."""
        call = self.scope.call.index
        lists_ = [set(self.graph.local_names(call, lists.listed(name))) for name in names]
        if self.all_made.intersection(names) or not set.intersection(*lists_):
            return False
        if [self.graph.age(name) for name in names] != sorted(
            {self.graph.age(name) for name in names}, reverse=True
        ):
            return False
        self.pops[self.here] = tuple(names)
        return True

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

    def _gather(self) -> None:
        """Note the values of earlier rounds that are read after the loop."""
        later = {value for statement in self.after for value in lists.reads(statement)}
        later.update(self.scope.outputs)
        for made in self.made[:-1]:
            for value, place in made.items():
                if value in later:
                    self.gathers.setdefault(place, None)

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
