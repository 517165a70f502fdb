"""Memory that a layer needs for a moment, estimated from the program alone."""

from __future__ import annotations

from collections.abc import Container, Hashable, Sequence

from autosplit.layers.kept import storage_of, wants
from autosplit.layers.operators import kind_of
from autosplit.layers.work import Work
from autosplit.program import Node, Program

_HANDED_ON = frozenset(
    ["add", "iadd", "radd", "sub", "isub", "identity", "cat", "concat", "concatenate", "stack"]
)
"""Operations whose backward returns the gradient it was given, or a part of it."""


class Scratch:
    """Plays a layer through with every value freed after its last use."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._work = Work(program)

    def layer(
        self, names: Sequence[str], kept: Container[Hashable], *, training: bool = True
    ) -> int:
        """Return the peak of a layer's forward or backward.

        Parameters
        ----------
        names
            Its operations, in running order.
        kept
            Keys of the storages that backward keeps: they do not count here.
        """
        forward = self._forward(names, kept)
        return max(forward, self._backward(names)) if training else forward

    def _forward(self, names: Sequence[str], kept: Container[Hashable]) -> int:
        inside = set(names)
        last: dict[Hashable, int] = {}
        size: dict[Hashable, int] = {}
        for place, name in enumerate(names):
            node = self._program.node[name]
            for value in (node, *map(self._program.node.__getitem__, node.inputs())):
                if value.name in inside and value.tensors and not self._leaves(value, inside):
                    last[storage_of(value)] = place
                    size[storage_of(value)] = max(
                        self._nbytes(value), size.get(storage_of(value), 0)
                    )
        live: set[Hashable] = set()
        peak = 0
        for place, name in enumerate(names):
            node = self._program.node[name]
            if node.tensors and storage_of(node) in last and storage_of(node) not in kept:
                live.add(storage_of(node))
            peak = max(peak, sum(size[key] for key in live))
            live = {key for key in live if last[key] > place}
        return peak

    def _backward(self, names: Sequence[str]) -> int:
        """Return the peak of the gradients: of values, and of the parameters of one operation."""
        live: dict[str, int] = {}
        peak = 0
        for name in reversed(names):
            node = self._program.node[name]
            if not wants(node) or self._work.is_view(node):
                continue
            kind = kind_of(self._program, node)
            for given in map(self._program.node.__getitem__, node.inputs()):
                if given.op != "state" and given.tensors and wants(given):
                    live[given.name] = 0 if kind in _HANDED_ON else self._nbytes(given)
            states = map(self._program.state.__getitem__, self._program.states_of(node))
            weights = sum(state.nbytes for state in states if state.requires_grad)
            peak = max(peak, sum(live.values()) + weights)
            live.pop(name, None)
        return peak

    def _leaves(self, node: Node, inside: Container[str]) -> bool:
        users = self._program.users[node.name]
        return node.name in self._program.outputs or any(user not in inside for user in users)

    def _nbytes(self, node: Node) -> int:
        return sum(map(self._work.nbytes, node.tensors))
