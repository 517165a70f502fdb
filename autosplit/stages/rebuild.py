"""Masks, positions and rotary tables: made again where they are read, or sent there.

A value that follows from sizes, model inputs and fixed buffers alone is the same on every rank.
It is made again in a later stage where its operations cost less time than its bytes on the
link; else it crosses the cut like any other. The operations are those of the model, in its
order: nothing random, nothing that is written in place, nothing that has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autosplit.program import Node, Program
from autosplit.stages.placement import Placement

# What an operation and a message cost on a machine of today; only their ratios matter here.
_OPERATION_S = 4e-6
_VIEW_S = 1e-6
_MESSAGE_S = 20e-6
_MEMORY_BYTES_PER_S = 1e12
_LINK_BYTES_PER_S = 16e9
_LARGEST_STATE_BYTES = 1 << 20
"""Buffers up to this size are held by another stage for the sake of a smaller value."""


def rebuild(placement: Placement) -> Placement:
    """Return a placement that makes cheap values again in the stages that read them."""
    makers = makers_of(placement.program)
    again: list[set[str]] = [set() for _ in range(placement.count)]
    for name, stage in placement.stage_of.items():
        for source in placement.program.node[name].inputs():
            if placement.stage_of.get(source, stage) < stage:
                again[stage].update(makers.get(source, ()))
    return replace(placement, again=tuple(frozenset(names) for names in again))


def makers_of(program: Program) -> dict[str, frozenset[str]]:
    """Return the values that later stages make again, and the operations that this takes.

    Where the cuts are has no say, so that a planner knows what crosses them: a stage that reads
    one of several tables that have operations in common is taken to read all of them, and what
    goes into a value that is made again is made again too.
    """
    makers = _Makers(program)
    # What only leads to other values is seldom read across a cut: it makes nothing cheaper.
    read = [name for name in makers.of if not makers.of.keys() >= set(program.users[name])]
    there: set[str] = set()
    before = -1
    while len(there) > before:
        before = len(there)
        for name in read:
            if makers.worth_it(name, there):
                there.update(makers.of[name])
    worth = [name for name in makers.of if makers.worth_it(name, there)]
    chosen = there.union(*(makers.of[name] for name in worth))
    return {name: found for name, found in makers.of.items() if name in chosen}


class _Makers:
    """The operations behind each value that could be made again, itself included."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.written = _written(program)
        self.of: dict[str, frozenset[str]] = {}
        for node in program.operations:
            if self._repeats(node):
                inner = (self.of.get(source, frozenset()) for source in node.inputs())
                self.of[node.name] = frozenset({node.name}).union(*inner)

    def worth_it(self, name: str, there: set[str]) -> bool:
        """Say whether making a value costs less than sending it; ``there`` is made anyway."""
        sent = self._nbytes(self.program.node[name])
        nodes = [self.program.node[each] for each in self.of[name] - there]
        state = sum(self.program.state[each].nbytes for each in self._states(nodes))
        if state > max(sent, _LARGEST_STATE_BYTES):
            return False
        made = sum(_OPERATION_S if self._computes(node) else _VIEW_S for node in nodes)
        moved = sum(self._nbytes(node) for node in nodes if self._computes(node))
        made += moved / _MEMORY_BYTES_PER_S
        return made < _MESSAGE_S + sent / _LINK_BYTES_PER_S

    def _repeats(self, node: Node) -> bool:
        """Whether an operation gives the same wherever and whenever it runs."""
        if node.op != "function" or node.random or node.mutates or node.writes_state:
            return False
        if any(spec.storage in self.written or spec.requires_grad for spec in node.tensors):
            return False
        return all(self._is_everywhere(self.program.node[source]) for source in node.inputs())

    def _is_everywhere(self, node: Node) -> bool:
        if any(spec.storage in self.written for spec in node.tensors):
            return False
        if node.op == "state":
            state = self.program.state[node.target]
            return state.kind != "parameter" and not state.requires_grad
        return node.op == "input" or node.name in self.of

    def _states(self, nodes: Iterable[Node]) -> set[str]:
        sources = {source for node in nodes for source in node.inputs()}
        found = (self.program.node[source] for source in sources)
        return {node.target for node in found if node.op == "state"}

    def _computes(self, node: Node) -> bool:
        """Whether an operation makes memory of its own."""
        before = {s.storage for source in node.inputs() for s in self.program.node[source].tensors}
        return any(spec.storage not in before - {-1} for spec in node.tensors)

    def _nbytes(self, node: Node) -> int:
        return sum(self.program.nbytes(spec) for spec in node.tensors)


def _written(program: Program) -> set[int]:
    """Return the storages that some operation writes to."""
    found: set[int] = set()
    for node in program.nodes:
        for name in node.mutates:
            found.update(spec.storage for spec in program.node[name].tensors)
    written = {name for node in program.nodes for name in node.writes_state}
    for node in program.nodes:
        if node.op == "state" and program.state[node.target].fqn in written:
            found.update(spec.storage for spec in node.tensors)
    return found
