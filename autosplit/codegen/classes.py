"""One class per structure: definitions, what they hold, and which of them are the same.

A definition is a module of the stage with its bodies. Definitions whose members and bodies
agree but for numbers share a class; numbers that differ become constructor arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from itertools import combinations

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    ClassRef,
    Expr,
    HelperRef,
    Invoke,
    Leaf,
    ModuleRef,
    Number,
    StateRef,
    Text,
    Value,
    call,
    leaves,
    transform,
)
from autosplit.codegen.members import (
    SECOND_NAME,
    Branch,
    Chain,
    Child,
    Layer,
    Member,
    State,
    Tie,
    build_tree,
    construct,
    frozen_parts,
    registration_order,
)
from autosplit.codegen.scopes import Loop, Scope, StageGraph, Statement

_MOST_ARGUMENTS = 6


@dataclass(eq=False)
class Definition:
    """A module of the stage: what it holds, and its bodies.

    Parameters
    ----------
    fqn, name
        Name of the module and wished name of the class.
    scopes
        Its calls.
    bodies
        A scope for each different body, with the number of the body's first slot; a second
        body becomes a second method.
    method
        Number of the body of each call.
    members, tree
        What it holds, by relative name; ``tree`` adds the containers.
    slots
        Numbers of members and bodies, with what to call them.
    """

    fqn: str
    name: str
    scopes: list[Scope] = field(default_factory=list)
    bodies: list[tuple[Scope, int]] = field(default_factory=list)
    method: dict[int, int] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    tree: Branch = field(default_factory=Branch)
    slots: list[Number] = field(default_factory=list)
    group: ClassGroup | None = None

    @property
    def prefix(self) -> str:
        """What the names of its members begin with."""
        return f"{self.fqn}." if self.fqn else ""


@dataclass(eq=False)
class ClassGroup:
    """Definitions that share a class.

    ``arguments`` maps a constructor argument to the slot it stands for; ``lifted`` maps a slot
    to the argument it became.
    """

    index: int
    definitions: list[Definition]
    name: str = ""
    arguments: dict[str, int] = field(default_factory=dict)
    lifted: dict[int, str] = field(default_factory=dict)

    @property
    def first(self) -> Definition:
        """The definition whose text is written."""
        return self.definitions[0]


@dataclass
class Classes:
    """All classes of a stage, inner ones first; the last is the stage itself."""

    groups: list[ClassGroup]
    definitions: dict[str, Definition]

    @property
    def stage(self) -> Definition:
        """The definition of the stage."""
        return self.definitions[""]

    def method(self, call_index: int) -> int:
        """Return the number of the method that holds a call."""
        return _method(self.definitions, call_index)

    def layers(self) -> Iterator[Layer]:
        """Yield the layers of all classes."""

        def inside(member: Member) -> Iterator[Layer]:
            if isinstance(member, Layer):
                yield member
            elif isinstance(member, Chain):
                for item in member.items:
                    yield from inside(item)

        for definition in self.definitions.values():
            for member in definition.members.values():
                yield from inside(member)


def name_classes(graph: StageGraph, classes: Classes, taken: set[str]) -> None:
    """Give every class a name of its own: the model's, with a number where two differ."""
    used = {"torch", "nn", "F", "math", f"Stage{graph.spec.index}", *taken}
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


def define(graph: StageGraph, root: Scope, helper_key: Callable[[int], str]) -> Classes:
    """Find the classes of a stage.

    Parameters
    ----------
    helper_key
        Name of the helper function that holds a call.
    """
    definitions = _definitions(root)
    order = registration_order(graph)
    for definition in definitions.values():
        _add_members(graph, definition, definitions)
    _add_unused_and_ties(graph, definitions, order)
    for definition in definitions.values():
        definition.members = dict(
            sorted(definition.members.items(), key=lambda pair: _rank(order, definition, pair[0]))
        )
        definition.tree = build_tree(graph, definition.fqn, definition.members)
    return Classes(_group(graph, definitions, helper_key), definitions)


def _definitions(root: Scope) -> dict[str, Definition]:
    found: dict[str, Definition] = {}
    for scope in [*root.scopes(), root]:
        if scope.kind not in ("module", "stage"):
            continue
        definition = found.setdefault(
            scope.fqn, Definition(scope.fqn, scope.call.name + scope.part)
        )
        definition.scopes.append(scope)
    return found


# ---------------------------------------------------------------- members


def _add_members(
    graph: StageGraph, definition: Definition, definitions: dict[str, Definition]
) -> None:
    for scope in definition.scopes:
        inner = {item.call.index: item for item in scope.items if isinstance(item, Scope)}
        for leaf in _leaves(scope.body):
            if isinstance(leaf, StateRef):
                rel = leaf.fqn[len(definition.prefix) :]
                definition.members.setdefault(rel, State(graph.program.state[leaf.fqn], leaf.fqn))
            elif isinstance(leaf, ModuleRef):
                rel = leaf.fqn[len(definition.prefix) :]
                called = inner.get(leaf.call) if leaf.call is not None else None
                definition.members.setdefault(rel, _module(graph, leaf.fqn, called, definitions))
    _drop_covered(definition)


def _module(
    graph: StageGraph, fqn: str, called: Scope | None, definitions: dict[str, Definition]
) -> Member:
    if called is None:
        return Layer(graph.program.module[fqn], fqn)
    if called.kind == "sequence":
        return Chain(tuple(_chain_item(graph, called, item, definitions) for item in called.items))
    return Child(fqn)


def _chain_item(
    graph: StageGraph, scope: Scope, item: str | Scope, definitions: dict[str, Definition]
) -> Member:
    if isinstance(item, Scope):
        return _module(graph, item.fqn, item, definitions)
    target = graph.nodes[item].target
    return _module(graph, graph.held_module(target, scope.prefix) or target, None, definitions)


def _drop_covered(definition: Definition) -> None:
    """Forget states that a layer or another class of the same definition brings along."""
    owners = [rel for rel, member in definition.members.items() if not isinstance(member, State)]
    for rel in [rel for rel, member in definition.members.items() if isinstance(member, State)]:
        if any(rel.startswith(f"{owner}.") for owner in owners):
            del definition.members[rel]


def _add_unused_and_ties(
    graph: StageGraph, definitions: dict[str, Definition], order: dict[str, int]
) -> None:
    """Hold every name the stage promises, and make names of one tensor one object."""
    covered = list(_covered(graph, definitions, definitions[""], ""))
    extra = set(covered).difference(graph.held)
    if extra:
        raise CodegenError(f"stage {graph.spec.index} would hold {sorted(extra)} too much")
    first: dict[str, str] = {}
    for name in sorted(covered, key=lambda each: order.get(each, len(order))):
        first.setdefault(graph.program.state[name].fqn, name)
    for name in graph.spec.state:
        state = graph.program.state[name]
        source = first.setdefault(state.fqn, name)
        if source != name:
            _tie(graph, definitions, name, source)
        elif name not in covered:
            owner = _deepest(definitions, name)
            owner.members[name[len(owner.prefix) :]] = State(state, name)


def _tie(graph: StageGraph, definitions: dict[str, Definition], name: str, source: str) -> None:
    module, other = name.rpartition(".")[0], source.rpartition(".")[0]
    members = definitions[""].members
    known = graph.program.module
    same = module and other and module in known and known[module] is known.get(other)
    if same and not isinstance(members.get(module), Child) and module not in _inside(definitions):
        members[module] = Tie(module, other)
        return
    definitions[""].members[SECOND_NAME + name] = Tie(name, source)


def _inside(definitions: dict[str, Definition]) -> set[str]:
    return {
        definition.prefix + rel
        for fqn, definition in definitions.items()
        if fqn
        for rel in definition.members
    }


def _covered(
    graph: StageGraph, definitions: dict[str, Definition], definition: Definition, fqn: str
) -> Iterator[str]:
    for rel, member in definition.members.items():
        yield from _names(graph, definitions, definition.prefix + rel, member)


def _names(
    graph: StageGraph, definitions: dict[str, Definition], name: str, member: Member
) -> Iterator[str]:
    match member:
        case State():
            yield name
        case Layer() | Chain():
            yield from graph.state_under(name)
        case Child(fqn):
            yield from _covered(graph, definitions, definitions[fqn], fqn)


def _deepest(definitions: dict[str, Definition], name: str) -> Definition:
    holders = (d for d in definitions.values() if name.startswith(d.prefix))
    return max(holders, key=lambda definition: len(definition.prefix))


def _rank(order: dict[str, int], definition: Definition, rel: str) -> list[int]:
    """Sort key that keeps whole containers together."""
    parts = (definition.prefix + rel.removeprefix(SECOND_NAME)).split(".")
    return [order.get(".".join(parts[: end + 1]), len(order)) for end in range(len(parts))] + [
        int(rel.startswith(SECOND_NAME))
    ]


# ---------------------------------------------------------------- same structures


def _group(
    graph: StageGraph, definitions: dict[str, Definition], helper_key: Callable[[int], str]
) -> list[ClassGroup]:
    found: dict[Hashable, list[Definition]] = {}
    groups: list[ClassGroup] = []
    for level in _levels(definitions):
        found.clear()
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
    while name in taken:
        number += 1
        name = f"{word}_{number}"
    return name


# ---------------------------------------------------------------- skeletons


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
            graph, scope, helper_key, definition.slots, lambda at: _method(definitions, at)
        )
        key = (body, tuple(slot.value for slot in definition.slots[before:]))
        if key in bodies:
            del definition.slots[before:]
        else:
            bodies.append(key)
            definition.bodies.append((scope, before))
        definition.method[scope.call.index] = bodies.index(key)
    return held, tuple(skeleton for skeleton, _ in bodies)


def _method(definitions: dict[str, Definition], call_index: int) -> int:
    return next((d.method[call_index] for d in definitions.values() if call_index in d.method), 0)


def built(
    graph: StageGraph, definitions: dict[str, Definition], definition: Definition
) -> Iterator[tuple[str, Expr]]:
    """Yield each member's relative name and the expression that makes it."""
    for rel, member in definition.members.items():
        yield rel, member_expr(graph, definitions, member)
        if isinstance(member, Layer):
            for name in frozen_parts(graph, member):
                yield f"{rel}.{name}", Text("frozen")


def member_expr(graph: StageGraph, definitions: dict[str, Definition], member: Member) -> Expr:
    """Return the expression that makes a member; numbers are slots of its owner."""
    match member:
        case Layer() | State():
            return construct(graph, member)
        case Tie(_, source):
            return Text(f"={source}")
        case Chain(items):
            return call("nn.Sequential", *(member_expr(graph, definitions, item) for item in items))
        case Child(fqn):
            group = definitions[fqn].group
            if group is None:
                raise CodegenError(f"{fqn!r} has no class yet")
            slots = definitions[fqn].slots
            args = tuple(Number(slots[at].value, name) for name, at in group.arguments.items())
            return Invoke(ClassRef(group.index), args)


def _keep_slots(definition: Definition, expr: Expr) -> Expr:
    def leaf(part: Leaf) -> Expr:
        if isinstance(part, Number):
            definition.slots.append(part)
            return Text(f"#{type(part.value).__name__}")
        return part

    return transform(expr, leaf)


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
        return statement.ambient, tuple(map(number, statement.targets)), place, expr

    head = tuple(number(value) for value in scope.inputs)
    sizes = tuple((number(f"$symbol:{s}"), number(v), d) for s, (v, d) in scope.sizes.items())
    device = number(scope.device_of)
    body: list[Hashable] = []
    for part in scope.body:
        if isinstance(part, Statement):
            body.append(line(part))
        else:
            lists = tuple((name[len(scope.prefix) :], at) for name, at in part.lists)
            carried = tuple((number(v), number(i)) for v, i in part.carried.items())
            body.append((len(part.rounds), lists, carried, tuple(map(line, part.body))))
            for statements in part.rounds[1:]:
                for model, other in zip(part.body, statements, strict=True):
                    for kept, value in zip(model.targets, other.targets, strict=True):
                        if kept is not None and value is not None:
                            numbers[value] = numbers[kept]
    return head, sizes, device, scope.ambient, tuple(body), tuple(map(number, scope.outputs))


def _leaves(body: list[Statement | Loop]) -> Iterator[Leaf]:
    for part in body:
        for statements in part.rounds if isinstance(part, Loop) else [[part]]:
            for statement in statements:
                yield from leaves(statement.expr)
                if statement.place is not None:
                    yield from leaves(statement.place)
