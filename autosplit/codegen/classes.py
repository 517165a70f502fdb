"""One class per structure: which definitions are the same, and what their classes are called.

Definitions whose members and bodies agree but for numbers share a class; numbers that differ
become constructor arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from itertools import combinations

from autosplit.codegen.definitions import (
    Classes,
    ClassGroup,
    Definition,
    built,
    collect,
    method_of,
)
from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    Expr,
    Leaf,
    Number,
    Text,
    transform,
)
from autosplit.codegen.given import share_members
from autosplit.codegen.members import (
    Chain,
    Child,
    Member,
)
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.codegen.skeletons import body_skeleton
from autosplit.program import ORIGINAL

_MOST_ARGUMENTS = 6


def define(graph: StageGraph, root: Scope, helper_key: Callable[[int], str]) -> Classes:
    """Find the classes of a stage.

    Parameters
    ----------
    helper_key
        Name of the helper function that holds a call.
    """
    definitions = collect(graph, root)
    return Classes(_group(graph, definitions, helper_key), definitions)


def name_classes(graph: StageGraph, classes: Classes, taken: set[str]) -> None:
    """Give every class a name of its own: the model's, with a number where two differ."""
    used = {"torch", "nn", "F", "math", ORIGINAL, f"Stage{graph.spec.index}", *taken}
    same: dict[str, list[ClassGroup]] = {}
    for group in classes.groups:
        if group.first is classes.stage:
            group.name = f"Stage{graph.spec.index}"
        else:
            same.setdefault(group.first.name, []).append(group)
    for stem, groups in same.items():
        groups.sort(key=lambda group: -len(group.definitions))
        for group in groups:
            suffix = "" if group is groups[0] else _distinction(group, groups)
            group.name = _free_name(stem + suffix, used)
            used.add(group.name)


def _free_name(stem: str, used: set[str]) -> str:
    name, number = stem, 1
    while name in used:
        number += 1
        name = f"{stem}{number}"
    return name


def _distinction(group: ClassGroup, groups: list[ClassGroup]) -> str:
    """Return the fewest parts of the modules' names that no other class of this name has."""
    others = [_marks(other) for other in groups if other is not group]
    own = _marks(group)
    for count in (1, 2):
        for marks in combinations(own, count):
            if not any(set(marks) <= set(other) for other in others):
                return "".join(_camel(mark) for mark in marks)
    return ""


def _marks(group: ClassGroup) -> list[str]:
    """Return what the names of all modules of a class share; "first" for index 0."""
    names = [definition.fqn.split(".") for definition in group.definitions]
    shared = [part for part in names[0] if all(part in name for name in names)]
    found = [part for part in shared if part.isidentifier() and part.isascii()]
    indices = {next((part for part in name if part.isdigit()), None) for name in names}
    return [*found, "first"] if indices == {"0"} else found


def _camel(word: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in word.split("_"))


# ---------------------------------------------------------------- same structures


def _group(
    graph: StageGraph, definitions: dict[str, Definition], helper_key: Callable[[int], str]
) -> list[ClassGroup]:
    found: dict[Hashable, list[Definition]] = {}
    groups: list[ClassGroup] = []
    for level in _levels(definitions):
        found.clear()
        share_members(graph, definitions, level, helper_key)
        for definition in level:
            key = (
                definition.fqn == "",
                definition.name,
                _skeleton(graph, definitions, definition, helper_key),
            )
            found.setdefault(key, []).append(definition)
        for same in found.values():
            for part in _few_arguments(same):
                groups.append(_class(graph, len(groups), part))
    return groups


def _levels(definitions: dict[str, Definition]) -> list[list[Definition]]:
    """Return definitions by height: those without inner classes first."""
    height: dict[str, int] = {}

    def measure(fqn: str) -> int:
        if fqn not in height:
            inner = [measure(child) for child in _children(definitions[fqn])]
            height[fqn] = 1 + max(inner, default=-1)
        return height[fqn]

    levels: dict[int, list[Definition]] = {}
    for fqn, definition in definitions.items():
        levels.setdefault(measure(fqn), []).append(definition)
    return [levels[key] for key in sorted(levels)]


def _children(definition: Definition) -> Iterator[str]:
    def inner(member: Member) -> Iterator[str]:
        if isinstance(member, Child):
            yield member.fqn
        elif isinstance(member, Chain):
            for item in member.items:
                yield from inner(item)

    for member in definition.members.values():
        yield from inner(member)


def _few_arguments(same: list[Definition]) -> list[list[Definition]]:
    """Split definitions that differ in too many numbers."""
    columns = {_column(same, at) for at in range(len(same[0].slots))}
    if sum(len(set(column)) > 1 for column in columns) <= _MOST_ARGUMENTS:
        return [same]
    parts: dict[tuple[str, ...], list[Definition]] = {}
    for definition in same:
        parts.setdefault(tuple(repr(slot.value) for slot in definition.slots), []).append(
            definition
        )
    return list(parts.values())


def _column(definitions: list[Definition], at: int) -> tuple[str, ...]:
    """Return one number of each definition, written out so that 0.0 and -0.0 differ."""
    return tuple(repr(definition.slots[at].value) for definition in definitions)


def _class(graph: StageGraph, index: int, definitions: list[Definition]) -> ClassGroup:
    group = ClassGroup(index, definitions)
    first = definitions[0]
    named: dict[tuple[str, ...], str] = {}
    for at, slot in enumerate(first.slots):
        column = _column(definitions, at)
        if len(set(column)) == 1:
            continue
        if column not in named:
            named[column] = _argument_name(graph, definitions, column, slot.hint, group.arguments)
            group.arguments[named[column]] = at
        group.lifted[at] = named[column]
    for definition in definitions:
        definition.group = group
    return group


def _argument_name(
    graph: StageGraph,
    definitions: list[Definition],
    column: tuple[str, ...],
    hint: str,
    taken: dict[str, int],
) -> str:
    """Return the model's own attribute with these values, or what torch calls the number."""
    rows = [dict(graph.program.module[definition.fqn].attributes) for definition in definitions]
    word = next(
        (
            name
            for name in rows[0]
            if name.isidentifier()
            and name not in ("training", "layer_idx")
            and all(repr(row.get(name)) == text for row, text in zip(rows, column, strict=True))
        ),
        hint if hint.isidentifier() else "value",
    )
    name, number = word, 1
    while name in taken or name == definitions[0].given:
        number += 1
        name = f"{word}_{number}"
    return name


def _skeleton(
    graph: StageGraph,
    definitions: dict[str, Definition],
    definition: Definition,
    helper_key: Callable[[int], str],
) -> Hashable:
    """Return what two definitions of one class agree in; collect the numbers they may not."""
    definition.slots = []
    held = tuple(
        (rel, _keep_slots(definition, expr)) for rel, expr in built(graph, definitions, definition)
    )
    bodies: list[tuple[Hashable, tuple[int | float, ...]]] = []
    for scope in definition.scopes:
        before = len(definition.slots)
        body = body_skeleton(
            graph, scope.text, helper_key, definition.slots, lambda at: method_of(definitions, at)
        )
        key = (body, tuple(slot.value for slot in definition.slots[before:]))
        if key in bodies:
            del definition.slots[before:]
        else:
            bodies.append(key)
            definition.bodies.append((scope.text, before))
        definition.method[scope.call.index] = bodies.index(key)
    if any(definition.method[call] for call in definition.chained):
        raise CodegenError(f"sequences run {definition.fqn!r} in several ways")
    return held, tuple(skeleton for skeleton, _ in bodies)


def _keep_slots(definition: Definition, expr: Expr) -> Expr:
    def leaf(part: Leaf) -> Expr:
        if isinstance(part, Number):
            definition.slots.append(part)
            return Text(f"#{type(part.value).__name__}")
        return part

    return transform(expr, leaf)
