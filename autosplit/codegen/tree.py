"""The call tree of a stage: which calls stay bodies of their own.

A module call becomes a class, an ``nn.Sequential`` its constructor, a Python function of some
substance a helper. Calls that the cut parts, and those that cannot stand alone, dissolve into
their caller.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from autosplit.codegen.scopes import Scope, StageGraph
from autosplit.program import PLAIN, Ambient, Call, Node, Program, Ref
from autosplit.stages.types import StageSpec

_SEQUENTIAL = ("torch.nn.Sequential", "torch.nn.modules.container.Sequential")
_NOT_HELPERS = {"forward", "wrapper", "inner", "wrapped_fn", "decorated"}
_SMALLEST_HELPER = 4
_SMALLEST_SHARED_HELPER = 2
_MOST_RESULTS = 3


@dataclass
class Extent:
    """How many operations a call has over all stages, and which are its first and last."""

    count: int = 0
    first: str = ""
    last: str = ""


@dataclass
class Extents:
    """Extents by call; ``functions`` counts the calls of each Python function."""

    of: dict[int, Extent] = field(default_factory=dict)
    functions: Counter[str] = field(default_factory=Counter)


def measure(program: Program, specs: Iterable[StageSpec]) -> Extents:
    """Measure every call of the stages."""
    found = Extents()
    for name in dict.fromkeys(name for spec in specs for name in spec.nodes):
        for index in _path(program, program.node[name]):
            if index not in found.of:
                found.of[index] = Extent(first=name)
                call = program.calls[index]
                found.functions[call.name] += call.kind == "function"
            extent = found.of[index]
            extent.count += 1
            extent.last = name
    return found


def _path(program: Program, node: Node) -> tuple[int, ...]:
    """Return the calls an operation is made in, that of a layer itself left out."""
    calls = node.calls
    fqn = program.calls[calls[-1]].fqn if calls else None
    return calls[:-1] if fqn is not None and program.module[fqn].leaf else calls


def flat(graph: StageGraph) -> Scope:
    """Return the stage as one scope without inner ones."""
    root = graph.program.calls[0]
    for call in [call for call in graph.names if call != root.index]:
        _merge_names(graph, root, call)
    return Scope("stage", root, "", list(graph.nodes))


def build(graph: StageGraph, extents: Extents, *, helpers: bool) -> Scope:
    """Return the call tree of a stage."""
    root = Scope("stage", graph.program.calls[0], "")
    stack = [root]
    for name, node in graph.nodes.items():
        path = tuple(i for i in _path(graph.program, node) if i != root.call.index)
        depth = 0
        while depth < len(path) and depth + 1 < len(stack):
            if stack[depth + 1].call.index != path[depth]:
                break
            depth += 1
        del stack[depth + 1 :]
        for index in path[depth:]:
            stack.append(_open(graph.program.calls[index], stack[-1]))
        stack[-1].items.append(name)
    own = measure(graph.program, (graph.spec,))
    pruner = _Pruner(graph, extents, own, helpers)
    pruner.prune(root)
    pruner.spread(root)
    pruner.settle(root)
    return root


def _open(call: Call, parent: Scope) -> Scope:
    scope = Scope("function" if call.kind == "function" else "module", call, call.fqn or "")
    parent.items.append(scope)
    return scope


def dissolve(graph: StageGraph, parent: Scope, child: Scope) -> None:
    """Put the items of a scope in its place."""
    at = parent.items.index(child)
    parent.items[at : at + 1] = child.items
    made = None if child.kind != "function" else set(child.nodes())
    _merge_names(graph, parent.call, child.call.index, made)


def _merge_names(graph: StageGraph, into: Call, call: int, made: set[str] | None = None) -> None:
    """Take over the names of a call, or only those of the values ``made`` there."""
    names = graph.names.setdefault(into.index, {})
    for value, found in graph.names.get(call, {}).items():
        if made is not None and value not in made:
            continue
        kept = names.setdefault(value, [])
        kept += [name for name in found if name not in kept]


# ---------------------------------------------------------------- which scopes stay


@dataclass
class _Pruner:
    graph: StageGraph
    extents: Extents
    own: Extents
    helpers: bool
    dissolved: set[str] = field(default_factory=set)

    def prune(self, scope: Scope) -> None:
        """Dissolve inner scopes that cannot or should not stand alone."""
        for child in [item for item in scope.items if isinstance(item, Scope)]:
            self.prune(child)
            stays = self._function(child) if child.kind == "function" else self._module(child)
            if not stays:
                self._dissolve(scope, child)
        self._reenter(scope)

    def spread(self, scope: Scope) -> None:
        """Dissolve every call of a module of which another call is dissolved."""
        before = -1
        while before != len(self.dissolved):
            before = len(self.dissolved)
            for parent in [*scope.scopes(), scope]:
                for child in [item for item in parent.items if isinstance(item, Scope)]:
                    if child.kind != "function" and child.call.fqn in self.dissolved:
                        self._dissolve(parent, child)

    def _dissolve(self, parent: Scope, child: Scope) -> None:
        if child.kind != "function" and child.call.fqn is not None:
            self.dissolved.add(child.call.fqn)
        dissolve(self.graph, parent, child)

    def _reenter(self, scope: Scope) -> None:
        """Dissolve calls that are left and entered again: one body cannot be run in parts."""
        seen = Counter(item.call.index for item in scope.items if isinstance(item, Scope))
        for child in [item for item in scope.items if isinstance(item, Scope)]:
            if seen[child.call.index] > 1:
                self._dissolve(scope, child)

    def settle(self, scope: Scope) -> None:
        """Name inner modules as their caller reaches them; dissolve callers that cannot."""
        for child in [item for item in scope.items if isinstance(item, Scope)]:
            if child.kind == "function":
                continue
            child.fqn = self._reach(child.call.fqn or "", scope) or child.fqn
            self.settle(child)
            if not self._reaches_all(child):
                dissolve(self.graph, scope, child)
                self.settle(scope)
                return
        for child in [item for item in scope.items if isinstance(item, Scope)]:
            if child.kind != "function":
                child.fqn = self._reach(child.call.fqn or "", scope) or child.fqn
            child.ambient = self._ambient(child)

    def _ambient(self, scope: Scope) -> Ambient:
        found = {self.graph.nodes[name].ambient for name in scope.nodes()}
        return found.pop() if len(found) == 1 else PLAIN

    def _reach(self, fqn: str, scope: Scope) -> str | None:
        held = self.graph.held_module(fqn, scope.prefix)
        return held or (fqn if fqn.startswith(scope.prefix) else None)

    def _reaches_all(self, scope: Scope) -> bool:
        for item in scope.items:
            if isinstance(item, Scope):
                if item.kind != "function" and not item.fqn.startswith(scope.prefix):
                    return False
                continue
            node = self.graph.nodes[item]
            if node.op == "module" and not self.graph.held_module(node.target, scope.prefix):
                return False
        return True

    def _module(self, scope: Scope) -> bool:
        extent, own = (each.of[scope.call.index] for each in (self.extents, self.own))
        if own.count < extent.count:
            if own.first == extent.first:
                scope.part = "Head"
            elif own.last == extent.last:
                scope.part = "Tail"
            else:
                scope.part = "Middle"
            if not scope.fqn.rpartition(".")[2].isdigit():
                return False
        if self.graph.program.module[scope.fqn].qualified in _SEQUENTIAL:
            if scope.part or not self._is_chain(scope):
                return False
            scope.kind = "sequence"
        return True

    def _is_chain(self, scope: Scope) -> bool:
        """Say whether an ``nn.Sequential`` runs each of its children once, in order."""
        spec = self.graph.program.module[scope.fqn]
        names = [
            item.fqn if isinstance(item, Scope) else self._target(item) for item in scope.items
        ]
        expected = [self.graph.program.module[f"{scope.fqn}.{c}"].fqn for c in spec.children]
        if not names or names != expected:
            return False
        if any(isinstance(item, Scope) and item.kind == "function" for item in scope.items):
            return False
        return len({self.graph.nodes[name].ambient for name in scope.nodes()}) == 1

    def _target(self, name: str) -> str:
        node = self.graph.nodes[name]
        return self.graph.program.module[node.target].fqn if node.op == "module" else ""

    def _function(self, scope: Scope) -> bool:
        name = scope.call.name
        if not self.helpers or not name.isidentifier() or name in _NOT_HELPERS:
            return False
        if name.startswith("wrap") or not any(char.isalpha() for char in name):
            return False
        nodes = list(scope.nodes())
        extent = self.extents.of[scope.call.index]
        shared = self.extents.functions[name] > 1
        smallest = _SMALLEST_SHARED_HELPER if shared else _SMALLEST_HELPER
        if self.own.of[scope.call.index].count != extent.count or len(nodes) < smallest:
            return False
        if any(isinstance(i, Scope) and i.kind != "function" for i in scope.scopes()):
            return False
        if any(self._unfit(node) for node in nodes):
            return False
        own = sum(not isinstance(item, Scope) for item in scope.items)
        inner = len(scope.items) - own
        if inner and own < 2 and inner < 2:
            return False
        return self._closed(set(nodes))

    def _unfit(self, name: str) -> bool:
        node = self.graph.nodes[name]
        if node.op != "function" or self.graph.writes(name):
            return True
        return any(self.graph.state(value) is not None for value in node.inputs())

    def _closed(self, nodes: set[str]) -> bool:
        """Say whether operations take something and return a few tensors."""
        taken = {v for name in nodes for v in self.graph.nodes[name].inputs() if v not in nodes}
        returned = [name for name in nodes if self._is_read_outside(name, nodes)]
        tensors = all(self.graph.tensor(name) is not None for name in returned)
        return bool(taken) and 1 <= len(returned) <= _MOST_RESULTS and tensors

    def _is_read_outside(self, name: str, nodes: set[str]) -> bool:
        if name in self.graph.give:
            return True
        return any(user not in nodes for user in self.graph.readers.get(name, ()))


def unlinked_sequences(graph: StageGraph, root: Scope) -> Iterator[tuple[Scope, Scope]]:
    """Yield ``(parent, sequence)`` for each sequence that is more than a chain of values."""
    for scope in [*root.scopes(), root]:
        for child in scope.items:
            if isinstance(child, Scope) and child.kind == "sequence" and not linked(graph, child):
                yield scope, child


def linked(graph: StageGraph, scope: Scope) -> bool:
    """Say whether each item of a scope takes only what the one before returned."""
    if len(scope.inputs) != 1 or len(scope.outputs) != 1 or scope.inputs[0].startswith("$"):
        return False
    value = scope.inputs[0]
    for item in scope.items:
        if isinstance(item, Scope):
            if item.inputs != [value] or len(item.outputs) != 1:
                return False
            value = item.outputs[0]
        else:
            node = graph.nodes[item]
            if node.args != (Ref(value),) or node.kwargs:
                return False
            value = item
    return scope.outputs == [value]
