"""Lists that the model's forward fills in loops: ``weights.append(weight)``, ``skips.pop()``.

A trace knows the elements alone: values of all rounds that are read after the loop, together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from autosplit.codegen.expressions import (
    Attribute,
    Binary,
    Display,
    Elements,
    Expr,
    Invoke,
    Leaf,
    Number,
    Subscript,
    Text,
    Unary,
    Value,
    call,
    leaves,
    rebuild,
    transform,
)
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement

HELD = "[]"
"""What ends the name of a list in the source names of its elements."""

PACKED = "[]"
"""All that a stage is given, where some of it is a list."""

_LIST = "["
Part: TypeAlias = Statement | Loop


def listed(value: str) -> str:
    """Return the list whose first known element is ``value``, as a value."""
    return _LIST + value


def element(value: str) -> str:
    """Return the element that a list is known by."""
    return value.removeprefix(_LIST)


def is_list(value: str) -> bool:
    """Say whether a value is a list."""
    return value.startswith(_LIST)


def is_listed(graph: StageGraph, scope: Scope, value: str) -> bool:
    """Say whether a list of the model's source held a value."""
    return bool(graph.local_names(scope.call.index, listed(value)))


def reads(statement: Statement) -> set[str]:
    """Return the values a statement reads, elements of lists included."""
    found: set[str] = set()
    for leaf in statement.leaves():
        if isinstance(leaf, Value):
            found.add(leaf.name)
        elif isinstance(leaf, Elements):
            found.update(leaf.names)
    return found


# ---------------------------------------------------------------- displays as leaves


def pack(statement: Statement) -> Statement:
    """Return a statement with its lists of values as leaves, and sums of such as ``sum``."""
    return mapped(statement, lambda expr: rebuild(expr, _packed))


def _packed(expr: Expr) -> Expr:
    match expr:
        case Display("list" | "tuple" as kind, items) if items:
            names = tuple(item.name for item in items if isinstance(item, Value))
            return Elements(kind, names) if len(names) == len(items) else expr
        case Binary("+", Binary("+", Value(first), Number(0)), Value(second)):
            return call("sum", Elements("list", (first, second)))
        case Binary("+", Invoke(Text("sum"), (Elements("list", names),), ()), Value(name)):
            return call("sum", Elements("list", (*names, name)))
    return expr


def mapped(statement: Statement, change: Callable[[Expr], Expr]) -> Statement:
    """Return a statement with its expressions changed."""
    place = None if statement.place is None else change(statement.place)
    return replace(statement, place=place, expr=change(statement.expr))


def _at_leaves(statement: Statement, change: Callable[[int, Leaf], Expr]) -> Statement:
    """Return a statement with its leaves changed, given their places in ``leaves()``."""
    at = -1

    def leaf(part: Leaf) -> Expr:
        nonlocal at
        at += 1
        return change(at, part)

    return mapped(statement, lambda expr: transform(expr, leaf))


def rounds(part: Part) -> Iterator[list[Statement]]:
    """Yield the statements of each round of a loop; a statement is one round."""
    if isinstance(part, Loop):
        yield from part.rounds
    else:
        yield [part]


# ---------------------------------------------------------------- lists of a scope


@dataclass(eq=False)
class _List:
    """A list that a loop fills.

    Parameters
    ----------
    value
        The list.
    key
        Value of the first round.
    loop, place
        The loop, and the statement and target whose values are appended.
    before, added
        Elements it has before the loop, and those that the loop appends.
    early
        Whether a round appends what it takes from the round before, not what it makes.
    """

    value: str
    key: str
    loop: Loop
    place: tuple[int, int]
    before: tuple[str, ...]
    added: tuple[str, ...]
    early: bool

    @property
    def whole(self) -> tuple[str, ...]:
        return self.before + self.added

    @property
    def hidden(self) -> set[str]:
        """Elements that have no variable after the loop."""
        return set(self.added[1:] if self.early else self.added[:-1])


class Writer:
    """Writes the lists of a body.

    ``parts`` is the body; ``refused`` are the first values of lists of which an element is read
    in a way that a list does not allow: such loops are not to be.
    """

    def __init__(self, graph: StageGraph, scope: Scope, parts: list[Part]) -> None:
        self.graph, self.scope = graph, scope
        self.parts = parts
        self.refused: set[str] = set()
        self.lists: list[_List] = []
        for at, part in enumerate(parts):
            if isinstance(part, Loop):
                self.lists += [self._list(at, part, place) for place in part.gathers]
        scope.lists = {each.value: each.whole for each in self.lists}
        self._check()
        if not self.refused:
            self._write()

    def _list(self, at: int, loop: Loop, place: tuple[int, int]) -> _List:
        made = tuple(str(each[place[0]].targets[place[1]]) for each in loop.rounds)
        initial = loop.carried.get(made[0])
        before = loop.gathers[place]
        early = before is None and initial is not None and self._together(initial, made[0])
        added = (str(initial), *made[:-1]) if early else made
        if before is None:
            before = self._before(at, added)
        return _List(listed(made[0]), made[0], loop, place, before, added, early)

    def _together(self, value: str, other: str) -> bool:
        names, others = (
            self.graph.local_names(self.scope.call.index, listed(each)) for each in (value, other)
        )
        return bool(set(names).intersection(others))

    def _before(self, at: int, added: tuple[str, ...]) -> tuple[str, ...]:
        """Return what stands before the elements of a loop in the first list that has them."""
        for part in self.parts[at + 1 :]:
            for statements in rounds(part):
                for statement in statements:
                    for leaf in statement.leaves():
                        start = find(leaf.names, added) if isinstance(leaf, Elements) else None
                        if start is not None and isinstance(leaf, Elements):
                            return leaf.names[:start]
        return ()

    # ------------------------------------------------------------ what lists do not allow

    def _check(self) -> None:
        """Refuse lists of which an element is read by itself after the loop."""
        for each in self.lists:
            alone = self._read_alone(each)
            if any(v in each.hidden for v in alone) or not self._pops_last(each):
                self.refused.add(each.key)

    def _pops_last(self, list_: _List) -> bool:
        """Say whether a list that is emptied is read by nobody else."""
        loops = [part for part in self.parts if isinstance(part, Loop)]
        pops = [names[::-1] for loop in loops for names in loop.pops.values()]
        if any(listed(names[0]) == list_.value and names != list_.whole for names in pops):
            return False
        places = [line for part in self.parts for each in rounds(part) for line in each]
        displays = [
            leaf.names for line in places for leaf in line.leaves() if isinstance(leaf, Elements)
        ]
        displays.append(tuple(self.scope.outputs))
        own = Value(list_.value)
        used = sum(own in leaves(each) for names in displays for each in self._spread(names))
        popped = pops.count(list_.whole)
        return popped == 0 or (popped == 1 and used == 0)

    def _read_alone(self, list_: _List) -> Iterator[str]:
        after = self.parts[self.parts.index(list_.loop) + 1 :]
        for part in after:
            pops = part.pops if isinstance(part, Loop) else {}
            for number, statements in enumerate(rounds(part)):
                for row, statement in enumerate(statements):
                    for at, leaf in enumerate(statement.leaves()):
                        if (row, at) in pops:
                            taken = pops[row, at][::-1]
                            if number == 0 and list_.whole != taken:
                                yield from taken
                        elif isinstance(leaf, Value):
                            yield leaf.name
                        elif isinstance(leaf, Elements):
                            yield from _left(self._spread(leaf.names))
        for each in self.lists:
            yield from _left(self._spread(each.before))
        yield from _left(self._spread(tuple(self.scope.outputs)))

    def _spread(self, names: tuple[str, ...]) -> tuple[Expr, ...]:
        """Return values with lists in the place of all their elements."""
        known: list[tuple[tuple[str, ...], Expr]] = []
        for each in self.lists:
            known.append((each.whole, Value(each.value)))
            if each.before:
                rest = Subscript(Value(each.value), (Text(f"{len(each.before)}:"),))
                known.append((each.added, rest))
        known.sort(key=lambda pair: -len(pair[0]))
        found: list[Expr] = []
        at = 0
        while at < len(names):
            fit = next((pair for pair in known if names[at:][: len(pair[0])] == pair[0]), None)
            found.append(Value(names[at]) if fit is None else Unary("*", fit[1]))
            at += 1 if fit is None else len(fit[0])
        return tuple(found)

    # ------------------------------------------------------------ writing

    def _write(self) -> None:
        found: list[Part] = []
        outputs = self._spread(tuple(self.scope.outputs))
        self.scope.returned = outputs if len(outputs) < len(self.scope.outputs) else None
        for part in self.parts:
            if isinstance(part, Loop):
                found += self._starts(part)
                self._rewrite(part)
                found.append(part)
            else:
                found.append(self._shown(part))
        self.parts = found
        for at, part in enumerate(found):
            if isinstance(part, Loop):
                part.copies = _copies(self.scope, part, found[at + 1 :])

    def _starts(self, loop: Loop) -> Iterator[Statement]:
        """Yield the statements that make the lists a loop fills or empties."""
        for each in self.lists:
            if each.loop is loop:
                yield self._start(each.value, each.before)
        for names in loop.pops.values():
            if not any(each.whole == names[::-1] for each in self.lists):
                value = listed(names[-1])
                self.scope.lists[value] = names[::-1]
                yield self._start(value, names[::-1])

    def _start(self, value: str, elements: tuple[str, ...]) -> Statement:
        start = Statement((value,), Elements("list", elements), None, None, self.scope.ambient)
        return self._shown(start)

    def _shown(self, statement: Statement) -> Statement:
        return _at_leaves(statement, lambda _, leaf: self._leaf(leaf))

    def _leaf(self, leaf: Leaf) -> Expr:
        if not isinstance(leaf, Elements):
            return leaf
        return display(leaf.kind, self._spread(leaf.names))

    def _rewrite(self, loop: Loop) -> None:
        places = {each.place: each for each in self.lists if each.loop is loop}
        popped = {
            where: next(
                (each.value for each in self.lists if each.whole == names[::-1]), listed(names[-1])
            )
            for where, names in loop.pops.items()
        }

        def rewritten(statements: list[Statement], number: int) -> list[Statement]:
            return [
                _at_leaves(statement, lambda at, leaf, row=row: leaf_at(row, at, leaf, number))  # type: ignore[misc]
                for row, statement in enumerate(statements)
            ]

        def leaf_at(row: int, at: int, leaf: Leaf, number: int) -> Expr:
            if (row, at) in popped:
                return Invoke(Attribute(Value(popped[row, at]), "pop"))
            if (row, at) not in loop.growing or not isinstance(leaf, Elements):
                return self._leaf(leaf)
            grown = places[loop.growing[row, at]]
            rest = leaf.names[len(grown.before) + number :]
            return display(
                leaf.kind, (Unary("*", Value(grown.value)), *(Value(name) for name in rest))
            )

        loop.rounds = [rewritten(each, number) for number, each in enumerate(loop.rounds)]
        loop.body = rewritten(loop.body, 0)
        for each in sorted(places.values(), key=lambda e: (not e.early, e.place), reverse=True):
            _append(self.graph, self.scope, loop, each)


def _append(graph: StageGraph, scope: Scope, loop: Loop, list_: _List) -> None:
    """Let each round of a loop append to a list."""
    row, target = list_.place
    own = str(loop.rounds[0][row].targets[target])
    append = Attribute(Value(list_.value), "append")
    unnamed = _only_listed(graph, scope, loop, list_)
    for number, statements in enumerate([loop.body, *loop.rounds]):
        maker = statements[row]
        if unnamed:
            statements[row] = replace(maker, targets=(), expr=Invoke(append, (maker.expr,)))
            continue
        value = own if number == 0 else list_.added[number - 1]
        line = Statement((), Invoke(append, (Value(value),)), None, None, maker.ambient)
        statements.insert(0 if list_.early else row + 1, line)


def _only_listed(graph: StageGraph, scope: Scope, loop: Loop, list_: _List) -> bool:
    """Say whether a value goes into its list and has no name of its own."""
    if list_.early or len(loop.body[list_.place[0]].targets) != 1:
        return False
    if any(graph.local_names(scope.call.index, value) for value in list_.added):
        return False
    inside = {value for each in loop.rounds for line in each for value in reads(line)}
    return not inside.intersection(list_.added)


def display(kind: str, items: tuple[Expr, ...]) -> Expr:
    """Return a list or tuple; one that holds all of a list is that list."""
    if len(items) == 1 and isinstance(items[0], Unary):
        return items[0].operand if kind == "list" else call("tuple", items[0].operand)
    return Display("list" if kind == "list" else "tuple", items)


def _left(items: tuple[Expr, ...]) -> Iterator[str]:
    return (item.name for item in items if isinstance(item, Value))


def find(names: tuple[str, ...], part: tuple[str, ...]) -> int | None:
    """Return where ``names`` has all of ``part`` in one piece."""
    starts = range(len(names) - len(part) + 1)
    return next((at for at in starts if names[at:][: len(part)] == part), None)


def _copies(scope: Scope, loop: Loop, after: list[Part]) -> list[tuple[str, str]]:
    """Return carried values whose initial value is read after the loop takes its place."""
    lines = [line for part in after for each in rounds(part) for line in each]
    later = {value for line in lines for value in reads(line)}.union(scope.results())
    inside = {v for each in loop.rounds[1:] for line in each for v in reads(line)}
    found, seen = [], set()
    for value, initial in loop.carried.items():
        if initial in later or initial in inside or initial in seen or initial.startswith("$"):
            found.append((value, initial))
        seen.add(initial)
    return found
