"""The modules of a stage that get a class: their bodies, and what they hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from autosplit.codegen.errors import CodegenError
from autosplit.codegen.expressions import (
    ClassRef,
    Expr,
    Invoke,
    ModuleRef,
    Number,
    StateRef,
    Text,
    call,
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
from autosplit.codegen.methods import method_names
from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.codegen.tree import linked


@dataclass(eq=False)
class Definition:
    """A module of the stage: what it holds, and its bodies.

    Parameters
    ----------
    fqn, name
        Name of the module and wished name of the class.
    scopes
        Its calls, those made by an ``nn.Sequential`` first.
    chained
        Those calls.
    bodies
        A scope for each different body, with the number of the body's first slot; a second
        body becomes a second method.
    method
        Number of the body of each call.
    members, tree
        What it holds, by relative name; ``tree`` adds the containers.
    slots
        Numbers of members and bodies, with what to call them.
    given
        The member that the constructor is given.
    """

    fqn: str
    name: str
    scopes: list[Scope] = field(default_factory=list)
    chained: set[int] = field(default_factory=set)
    bodies: list[tuple[Scope, int]] = field(default_factory=list)
    method: dict[int, int] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    tree: Branch = field(default_factory=Branch)
    slots: list[Number] = field(default_factory=list)
    given: str | None = None
    group: ClassGroup | None = None

    @property
    def prefix(self) -> str:
        """What the names of its members begin with."""
        return f"{self.fqn}." if self.fqn else ""

    def methods(self) -> list[str]:
        """Return the name of the method of each body."""
        return method_names([scope for scope, _ in self.bodies], self.tree.children)


@dataclass(eq=False)
class ClassGroup:
    """Definitions that share a class.

    ``arguments`` maps a constructor argument to the slot it stands for; ``lifted`` maps a slot
    to the argument it became; ``attributes`` maps a slot to the attribute of the original
    module that has its value.
    """

    index: int
    definitions: list[Definition]
    name: str = ""
    arguments: dict[str, int] = field(default_factory=dict)
    lifted: dict[int, str] = field(default_factory=dict)
    attributes: dict[int, str] = field(default_factory=dict)

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

    def method(self, call_index: int) -> str:
        """Return the name of the method that holds a call; a call without one is ``forward``."""
        made = (d for d in self.definitions.values() if call_index in d.method)
        definition = next(made, None)
        if definition is None:
            return "forward"
        owner = definition.group.first if definition.group is not None else definition
        return owner.methods()[definition.method[call_index]]

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


# ---------------------------------------------------------------- what they hold


def collect(graph: StageGraph, root: Scope) -> dict[str, Definition]:
    """Return the definitions of a stage by the name of their module, members included.

    Raises
    ------
    CodegenError
        If the stage would hold state that it is not to hold.
    """
    definitions = _definitions(root)
    order = registration_order(graph)
    for definition in definitions.values():
        _add_members(graph, definition, definitions)
    _hand_down(definitions)
    _add_unused_and_ties(graph, definitions, order)
    for definition in definitions.values():
        definition.members = dict(
            sorted(definition.members.items(), key=lambda pair: _rank(order, definition, pair[0]))
        )
        definition.tree = build_tree(graph, definition.fqn, definition.members)
        if _is_sequence(graph, definition):
            definition.tree.kind = "sequence"
    _chained_first(definitions, root)
    return definitions


def _chained_first(definitions: dict[str, Definition], root: Scope) -> None:
    """Let ``forward`` be the body that an ``nn.Sequential`` runs, whatever other calls do."""
    chained: set[int] = set()
    for scope in root.scopes():
        definition = definitions.get(scope.fqn)
        if scope.kind == "sequence" or (definition and definition.tree.kind == "sequence"):
            chained |= {item.call.index for item in scope.items if isinstance(item, Scope)}
    for definition in definitions.values():
        definition.chained = chained.intersection(s.call.index for s in definition.scopes)
        definition.scopes.sort(key=lambda scope: scope.call.index not in chained)


def _is_sequence(graph: StageGraph, definition: Definition) -> bool:
    """Say whether a class runs layers named 0, 1, ... one after the other and does no more."""
    layers = definition.tree.children
    if not layers or list(layers) != [str(index) for index in range(len(layers))]:
        return False
    if any(isinstance(layer, Branch | State | Tie) for layer in layers.values()):
        return False
    names = [definition.prefix + name for name in layers]
    return all(_runs(graph, scope) == names for scope in definition.scopes)


def _runs(graph: StageGraph, scope: Scope) -> list[str | None]:
    """Return the modules that a plain chain of calls runs; nothing if it is none."""
    if scope.kind != "module" or not linked(graph, scope):
        return []
    if any(graph.nodes[name].ambient != scope.ambient for name in scope.nodes()):
        return []
    return [
        graph.held_module(graph.nodes[item].target, scope.prefix)
        if isinstance(item, str)
        else (item.fqn if item.kind != "function" else None)
        for item in scope.items
    ]


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


def _add_members(
    graph: StageGraph, definition: Definition, definitions: dict[str, Definition]
) -> None:
    for scope in definition.scopes:
        inner = {item.call.index: item for item in scope.items if isinstance(item, Scope)}
        for leaf in scope.leaves():
            if isinstance(leaf, StateRef):
                rel = leaf.fqn[len(definition.prefix) :]
                definition.members.setdefault(rel, State(graph.program.state[leaf.fqn], leaf.fqn))
            elif isinstance(leaf, ModuleRef):
                rel = leaf.fqn[len(definition.prefix) :]
                called = inner.get(leaf.call) if leaf.call is not None else None
                definition.members.setdefault(rel, _module(graph, leaf.fqn, called, definitions))


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


def _hand_down(definitions: dict[str, Definition]) -> None:
    """Let a class that is inside another hold what the outer one reaches through it."""
    for definition in sorted(definitions.values(), key=lambda each: len(each.prefix)):
        members = definition.members
        owners = sorted((rel for rel, m in members.items() if not isinstance(m, State)), key=len)
        for rel in list(members):
            owner = next((each for each in owners if rel.startswith(f"{each}.")), None)
            if owner is None:
                continue
            member, holder = members.pop(rel), members[owner]
            if isinstance(holder, Child) and not isinstance(member, State):
                inner = rel[len(owner) + 1 :]
                definitions[holder.fqn].members.setdefault(inner, member)


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
            layer = _unused_layer(graph, name, covered)
            held = name if layer is None else layer.name
            owner = _deepest(definitions, held)
            owner.members[held[len(owner.prefix) :]] = layer or State(state, name)
            covered += [name] if layer is None else graph.state_under(held)


def _unused_layer(graph: StageGraph, name: str, covered: list[str]) -> Layer | None:
    """Return the layer that holds a state nobody uses, if the stage holds all of the layer."""
    fqn = name.rpartition(".")[0]
    spec = graph.program.module.get(fqn)
    if spec is None or not spec.leaf or spec.constructor is None or spec.fqn != fqn:
        return None
    names = set(graph.state_under(fqn))
    if not names <= graph.held or names.intersection(covered):
        return None
    return Layer(spec, fqn)


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


def built(
    graph: StageGraph, definitions: dict[str, Definition], definition: Definition
) -> Iterator[tuple[str, Expr]]:
    """Yield each member's relative name and the expression that makes it."""
    for rel, member in definition.members.items():
        if rel == definition.given:
            yield rel, Text(rel)
            continue
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
            child = definitions[fqn]
            args: list[Expr] = [
                Number(child.slots[at].value, name) for name, at in group.arguments.items()
            ]
            if child.given is not None:
                args.append(member_expr(graph, definitions, child.members[child.given]))
            return Invoke(ClassRef(group.index), tuple(args))


def method_of(definitions: dict[str, Definition], call_index: int) -> int:
    """Return the number of the method that holds a call; 0 for calls without one."""
    return next((d.method[call_index] for d in definitions.values() if call_index in d.method), 0)
