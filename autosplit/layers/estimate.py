"""Work of a layer by family, forward and backward, estimated from the program alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from autosplit.layers.operators import family_of, kind_of
from autosplit.layers.work import Work
from autosplit.program import DTYPE_BYTES, Node, Program
from autosplit.types import Family, OperatorWork

_ATTENTION_BACKWARD = 2.5
"""Backward over forward of fused attention: five products instead of two, scores once more."""

_ACCUMULATE_PASSES = 3
"""Times that adding a gradient goes through memory: two reads and a write."""


@dataclass
class _Sum:
    operations: int = 0
    flops: int = 0
    moved_bytes: int = 0
    backward_operations: int = 0
    backward_flops: int = 0
    backward_bytes: int = 0


class Estimate:
    """Work of the operations of a program, at the example sizes.

    Parameters
    ----------
    program
        A traced model.
    training
        Whether there is a backward.
    weights
        Whether the backward makes gradients of parameters; else of what the layers take alone.
    """

    def __init__(self, program: Program, *, training: bool = True, weights: bool = True) -> None:
        self._program = program
        self._training = training
        self._weights = weights
        self._work = Work(program)

    def layer(self, names: Iterable[str]) -> tuple[OperatorWork, ...]:
        """Return the work of a layer, in the order in which families occur."""
        nodes = [self._program.node[name] for name in names]
        sums: dict[tuple[Family, str], _Sum] = {}
        for node in nodes:
            if node.tensors and not self._work.is_view(node):
                self._add(node, sums)
        if self._training and self._weights:
            self._accumulate(nodes, sums)
        return tuple(
            OperatorWork(
                family,
                dtype,
                operations=each.operations,
                flops=each.flops,
                moved_bytes=each.moved_bytes,
                backward_operations=each.backward_operations,
                backward_flops=each.backward_flops,
                backward_bytes=each.backward_bytes,
            )
            for (family, dtype), each in sums.items()
        )

    def _add(self, node: Node, sums: dict[tuple[Family, str], _Sum]) -> None:
        family = family_of(kind_of(self._program, node))
        into = sums.setdefault((family, _dtype(node)), _Sum())
        flops, moved = self._forward(node, family)
        into.operations += 1
        into.flops += flops
        into.moved_bytes += moved
        passes = self._gradients(node, family)
        if passes:
            written = self._weight_bytes(node) if family == "lookup" and self._weights else 0
            into.backward_operations += math.ceil(passes)
            into.backward_flops += round(passes * flops)
            into.backward_bytes += round(passes * moved) + written

    def _forward(self, node: Node, family: Family) -> tuple[int, int]:
        """Return operations and bytes; a lookup reads the rows it gives, not the whole table."""
        given = sum(self._work.nbytes(spec) for spec in node.tensors)
        if family == "lookup":
            return 0, 2 * given
        return self._work.flops(node) + self._scores(node), self._work.moved_bytes(node)

    def _scores(self, node: Node) -> int:
        """Return what attention as one module computes besides its projections."""
        if node.op != "module" or "MultiheadAttention" not in node_class(self._program, node):
            return 0
        query, key, *_ = [*self._work.operands(node), *node.tensors]
        length = self._work.shape(key)[-2] if len(key.shape) > 1 else 1
        return 4 * self._work.numel(query) * length

    def _gradients(self, node: Node, family: Family) -> float:
        """Return how often the backward does what the forward did: once for each gradient."""
        if not self._training or not any(spec.requires_grad for spec in node.tensors):
            return 0.0
        wanted = self._wanted(node)
        if not wanted and not self._weights:
            return 0.0
        if family == "attention":
            return _ATTENTION_BACKWARD
        if family not in ("product", "convolution"):
            return 1.0
        return float(min(2, max(1, wanted)))

    def _wanted(self, node: Node) -> int:
        """Return how many operands a gradient is wanted for."""
        if not self._weights:
            given = (self._program.node[name] for name in node.inputs())
            taken = [spec for each in given if each.op != "state" for spec in each.tensors]
            return sum(spec.requires_grad for spec in taken)
        wanted = sum(spec.requires_grad for spec in self._work.operands(node))
        if node.op == "module":
            wanted += any(
                self._program.state[name].requires_grad for name in self._program.states_of(node)
            )
        return wanted

    def _weight_bytes(self, node: Node) -> int:
        states = map(self._program.state.__getitem__, self._program.states_of(node))
        return sum(state.nbytes for state in states if state.requires_grad)

    def _accumulate(self, nodes: list[Node], sums: dict[tuple[Family, str], _Sum]) -> None:
        """Add what it takes to sum gradients into those of the parameters."""
        states = map(
            self._program.state.__getitem__,
            self._program.states_in(node.name for node in nodes),
        )
        for state in states:
            if state.kind == "parameter" and state.requires_grad:
                into = sums.setdefault(("pointwise", state.dtype), _Sum())
                into.backward_operations += 1
                into.backward_flops += state.nbytes // DTYPE_BYTES[state.dtype]
                into.backward_bytes += _ACCUMULATE_PASSES * state.nbytes


def node_class(program: Program, node: Node) -> str:
    """Return the class of the leaf module that a node calls."""
    return program.module[node.target].class_name


def _dtype(node: Node) -> str:
    """Return the dtype an operation computes in: that of what it returns first."""
    return node.tensors[0].dtype
