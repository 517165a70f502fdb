"""Which operations count, in what order they must run, and which may not be parted.

Values alone do not say it: an operation that writes to memory in place must run after those that
read the old content and before those that read the new one. Memory is known by its storage, so
that views of one tensor are one memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from autosplit.program import Node, Program, TensorSpec

Memory: TypeAlias = int | str
"""A storage number, or the name of the state or node that owns the memory."""


@dataclass(frozen=True)
class Dataflow:
    """The operations that matter and what holds between them; numbers are places in ``nodes``.

    Parameters
    ----------
    nodes
        Operations that the outputs or lasting effects of the model depend on, in running order.
    data
        ``(producer, consumer)`` pairs.
    order
        ``(before, after)`` pairs that only writes to memory ask for.
    locks
        Sets of operations that must stay in one layer.
    """

    nodes: tuple[Node, ...]
    data: tuple[tuple[int, int], ...]
    order: tuple[tuple[int, int], ...]
    locks: tuple[tuple[int, ...], ...]


def dataflow(program: Program) -> Dataflow:
    """Return the live operations of a program with their order and locks."""
    memory = _MemoryMap(program)
    live = _live(program, memory)
    nodes = tuple(node for node in program.operations if node.name in live)
    place = {node.name: index for index, node in enumerate(nodes)}
    data = sorted(
        (place[name], index)
        for index, node in enumerate(nodes)
        for name in node.inputs()
        if name in place
    )
    order, locks = _mutation(nodes, place, memory)
    order -= set(data)
    locks += _tuple_locks(nodes, place)
    return Dataflow(nodes, tuple(data), tuple(sorted(order)), tuple(locks))


class _MemoryMap:
    """The memory each node's value lives in, and what each operation reads and writes."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._of_state: dict[str, Memory] = {}
        for node in program.nodes:
            if node.op == "state" and node.tensors:
                fqn = program.state[node.target].fqn
                storage = node.tensors[0].storage
                self._of_state.setdefault(fqn, storage if storage >= 0 else fqn)
        self._held: dict[str, frozenset[Memory]] = {}
        for node in program.nodes:
            self._held[node.name] = self._value_memory(node)

    def _value_memory(self, node: Node) -> frozenset[Memory]:
        if node.op == "state":
            return frozenset([self.of_state(node.target)])
        known = frozenset(spec.storage for spec in node.tensors if spec.storage >= 0)
        if known or not node.tensors:
            return known
        if node.returns_argument and node.inputs():
            return self._held[node.inputs()[0]]
        return frozenset([node.name])

    def of_state(self, name: str) -> Memory:
        """Return the memory of a parameter, buffer or constant."""
        fqn = self.program.state[name].fqn
        return self._of_state.get(fqn, fqn)

    def held(self, name: str) -> frozenset[Memory]:
        """Return the memory a node's value lives in."""
        return self._held[name]

    def states(self, node: Node) -> frozenset[Memory]:
        """Return the memory of the state that an operation reaches itself."""
        return frozenset(self.of_state(name) for name in self.program.states_of(node))

    def touched(self, node: Node) -> frozenset[Memory]:
        """Return all memory an operation reads, writes or returns."""
        found = self.held(node.name) | self.states(node) | self.written(node)
        return found.union(*(self.held(name) for name in node.inputs()))

    def written(self, node: Node) -> frozenset[Memory]:
        """Return the memory an operation writes to in place."""
        states = frozenset(self.of_state(name) for name in node.writes_state)
        return states.union(*(self.held(name) for name in node.mutates))


def _live(program: Program, memory: _MemoryMap) -> set[str]:
    """Return the nodes that outputs or state depend on, writers of live memory included."""
    writers = [node for node in program.operations if node.mutates or node.writes_state]
    pending = [*program.outputs, *(node.name for node in writers if node.writes_state)]
    live: set[str] = set()
    live_memory: set[Memory] = set()
    while pending:
        while pending:
            name = pending.pop()
            if name not in live:
                live.add(name)
                live_memory |= memory.held(name)
                pending.extend(program.node[name].inputs())
        pending = [
            node.name
            for node in writers
            if node.name not in live and not live_memory.isdisjoint(memory.written(node))
        ]
    return live


def _mutation(
    nodes: tuple[Node, ...], place: dict[str, int], memory: _MemoryMap
) -> tuple[set[tuple[int, int]], list[tuple[int, ...]]]:
    """Return order pairs and locks of all in-place writes.

    Each writer comes after every access since the write before it, and before every access up
    to the next. It stays with what made the memory and the views of it: a layer that were cut
    between them would write to a copy.
    """
    written = frozenset[Memory]().union(*(memory.written(node) for node in nodes))
    accesses: dict[Memory, list[int]] = {}
    for index, node in enumerate(nodes):
        for key in memory.touched(node) & written:
            accesses.setdefault(key, []).append(index)
    order: set[tuple[int, int]] = set()
    locks: list[tuple[int, ...]] = []
    for key in sorted(accesses, key=lambda key: accesses[key][0]):
        writers = [i for i in accesses[key] if key in memory.written(nodes[i])]
        order |= _order_pairs(accesses[key], set(writers))
        holders = [i for i in accesses[key] if key in memory.held(nodes[i].name)]
        owners = [i for i in accesses[key] if key in memory.states(nodes[i])]
        made = [i for i in holders if i <= writers[-1]]
        locks.append(tuple(sorted({*made, *owners, *writers})))
    return order, [lock for lock in locks if len(lock) > 1]


def _order_pairs(accesses: Iterable[int], writers: set[int]) -> set[tuple[int, int]]:
    pairs: set[tuple[int, int]] = set()
    last_writer: int | None = None
    readers: list[int] = []
    for index in accesses:
        if last_writer is not None:
            pairs.add((last_writer, index))
        if index in writers:
            pairs.update((reader, index) for reader in readers)
            last_writer, readers = index, []
        else:
            readers.append(index)
    return pairs


def _tuple_locks(nodes: tuple[Node, ...], place: dict[str, int]) -> list[tuple[int, ...]]:
    """Return locks that keep what is no tensor, as a tuple of them, with those who read it."""
    return [
        (place[name], index)
        for index, node in enumerate(nodes)
        for name in node.inputs()
        if name in place and not isinstance(nodes[place[name]].value, TensorSpec)
    ]
