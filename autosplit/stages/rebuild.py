"""Masks, positions and rotary tables: made again where they are read, or sent there.

A value that follows from sizes, model inputs and fixed buffers alone is the same on every rank.
It is made again in a later stage where its operations cost less time than its bytes on the
link; else it crosses the cut like any other. The operations are those of the model, in its
order: nothing random, nothing that is written in place, nothing that has a gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from autosplit.program import DTYPE_BYTES, Node, Program, TensorSpec
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
    makers = _Makers(placement)
    readers = _readers(placement)
    chosen: dict[str, None] = {}
    again: list[set[str]] = [set() for _ in range(placement.count)]
    before = -1
    while len(chosen) > before:
        before = len(chosen)
        for name in readers:
            if name not in chosen and makers.worth_it(name, again[min(readers[name])]):
                chosen[name] = None
                for stage in readers[name]:
                    again[stage].update(makers.of[name])
    return replace(placement, again=tuple(frozenset(names) for names in again))


def _readers(placement: Placement) -> dict[str, set[int]]:
    """Return, for each value that crosses a cut, the later stages that read it."""
    found: dict[str, set[int]] = defaultdict(set)
    for name, stage in placement.stage_of.items():
        for source in placement.program.node[name].inputs():
            if placement.stage_of.get(source, stage) < stage:
                found[source].add(stage)
    return found


class _Makers:
    """The operations behind each value that could be made again, itself included."""

    def __init__(self, placement: Placement) -> None:
        self.program = placement.program
        self.written = _written(self.program)
        self.of: dict[str, frozenset[str]] = {}
        for name in placement.stage_of:
            node = self.program.node[name]
            if self._repeats(node):
                inner = (self.of.get(source, frozenset()) for source in node.inputs())
                self.of[name] = frozenset({name}).union(*inner)

    def worth_it(self, name: str, there: set[str]) -> bool:
        """Say whether making a value costs less than sending it; ``there`` is made anyway."""
        if name not in self.of:
            return False
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
        return sum(_nbytes(self.program, spec) for spec in node.tensors)


def _nbytes(program: Program, spec: TensorSpec) -> int:
    count = 1
    for dim in spec.shape:
        count *= program.evaluate(dim)
    return count * DTYPE_BYTES[spec.dtype]


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
