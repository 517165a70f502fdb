"""How much an operation computes and moves, estimated from shapes alone.

Used where nothing has been measured: to keep layers small enough while they are formed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from autosplit.program import DTYPE_BYTES, Dim, Mapping, Node, Program, Ref, Sequence, TensorSpec

_PRODUCTS: dict[str, int] = {
    "matmul": 0,
    "__matmul__": 0,
    "bmm": 0,
    "mm": 0,
    "mv": 0,
    "linear": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addbmm": 1,
    "_grouped_mm": 0,
}
"""Matrix products, with the position of the argument whose last dimension is summed over."""

_CONVOLUTIONS = re.compile(r"_?(conv\d?d?|conv_transpose\dd|convolution(_overrideable)?)")
_ATTENTION = re.compile(r"_?scaled_dot_product_\w*attention\w*|multi_head_attention_forward")
_LOOKUPS = frozenset({"embedding", "embedding_bag"})

FLOPS_PER_BYTE = 8.0
"""Operations a CPU core computes in the time it moves one byte: the order of magnitude."""

OVERHEAD_BYTES = 16384.0
"""Bytes a core could move in the time it takes to start an operation."""


def short_name(target: str) -> str:
    """Return the bare name of a function: ``linear`` of ``torch.ops.aten.linear.default``."""
    parts = [part for part in target.split(".") if part]
    if target.startswith("torch.ops.") and len(parts) > 3:
        return parts[3]
    return parts[-2] if parts[-1] == "__get__" else parts[-1]


class Work:
    """Operations and bytes of each node of a program, at the example sizes."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sizes: dict[Dim, int] = {}

    def cost(self, node: Node) -> float:
        """Return the time of a node, in the bytes a core could move in that time."""
        return self.flops(node) / FLOPS_PER_BYTE + self.moved_bytes(node) + OVERHEAD_BYTES

    def is_heavy(self, node: Node) -> bool:
        """Return whether a layer forms around the node: it multiplies or holds parameters."""
        if node.op == "module":
            return any(
                self._program.state[name].kind == "parameter"
                for name in self._program.states_of(node)
            )
        name = short_name(node.target)
        return (
            name in _PRODUCTS
            or name in _LOOKUPS
            or name == "einsum"
            or _CONVOLUTIONS.fullmatch(name) is not None
            or _ATTENTION.fullmatch(name) is not None
        )

    def layer_flops(self, names: Iterable[str]) -> int:
        """Return floating-point operations of the forward of a layer."""
        return sum(self.flops(self._program.node[name]) for name in names)

    def flops(self, node: Node) -> int:
        """Return floating-point operations of the forward (a multiply-add counts as two)."""
        produced = sum(self.numel(spec) for spec in node.tensors)
        if node.op == "module":
            return self._module_flops(node, produced)
        name = short_name(node.target)
        operands = self.operands(node)
        if name in _PRODUCTS and len(operands) > _PRODUCTS[name]:
            return 2 * produced * self.shape(operands[_PRODUCTS[name]])[-1]
        if name == "einsum":
            return 2 * math.prod(self._einsum_sizes(node, operands).values())
        if _CONVOLUTIONS.fullmatch(name) and len(operands) > 1:
            return self._convolution_flops(node, operands[0], operands[1], "transpose" in name)
        if _ATTENTION.fullmatch(name) and len(operands) > 1:
            return 4 * self.numel(operands[0]) * self.shape(operands[1])[-2]
        return 0 if self.is_view(node) else produced

    def moved_bytes(self, node: Node) -> int:
        """Return bytes read and written; a view moves none."""
        if self.is_view(node):
            return 0
        states = (self._program.state[name].nbytes for name in self._program.states_of(node))
        reads = (
            self.nbytes(spec)
            for name in node.inputs()
            if self._program.node[name].op != "state"
            for spec in self._program.node[name].tensors
        )
        return sum(reads) + sum(states) + sum(self.nbytes(spec) for spec in node.tensors)

    def shape(self, spec: TensorSpec) -> tuple[int, ...]:
        """Return the shape at the example sizes."""
        return tuple(self._size(dim) for dim in spec.shape)

    def numel(self, spec: TensorSpec) -> int:
        """Return the number of elements at the example sizes."""
        return math.prod(self.shape(spec))

    def nbytes(self, spec: TensorSpec) -> int:
        """Return the bytes of a dense tensor at the example sizes."""
        return self.numel(spec) * DTYPE_BYTES[spec.dtype]

    def _size(self, dim: Dim) -> int:
        if dim not in self._sizes:
            self._sizes[dim] = self._program.evaluate(dim)
        return self._sizes[dim]

    def operands(self, node: Node) -> list[TensorSpec]:
        """Return tensors among the direct arguments, in order."""
        found: list[TensorSpec] = []
        for arg in (*node.args, *(arg for _, arg in node.kwargs)):
            items = arg.items if isinstance(arg, (Sequence, Mapping)) else (arg,)
            for item in items:
                if isinstance(item, Ref):
                    found.extend(self._program.node[item.name].tensors)
        return found

    def is_view(self, node: Node) -> bool:
        """Return whether the node returns memory that was there before, and writes nothing."""
        if node.op != "function" or node.mutates or node.writes_state:
            return False
        given = {
            spec.storage for name in node.inputs() for spec in self._program.node[name].tensors
        }
        return all(spec.storage >= 0 and spec.storage in given for spec in node.tensors)

    def _module_flops(self, node: Node, produced: int) -> int:
        """Return two operations per weight and row, rows as a convolution or a linear sees them."""
        weights = [
            state
            for state in map(self._program.state.__getitem__, self._program.states_of(node))
            if state.kind == "parameter"
        ]
        if not weights:
            return produced
        kind = self._program.module[node.target].class_name
        if "Embedding" in kind:
            return 0
        largest = max(weights, key=lambda state: len(state.shape))
        if "Conv" in kind and len(largest.shape) > 2:
            weight = TensorSpec(largest.shape, largest.dtype)
            return self._convolution_flops(
                node, self.operands(node)[0], weight, "Transpose" in kind
            )
        matrices = [state for state in weights if len(state.shape) > 1]
        if not matrices:
            return 5 * produced
        width = self.shape(self.operands(node)[0])[-1] or 1
        rows = self.numel(self.operands(node)[0]) // width
        return 2 * rows * sum(math.prod(state.shape) for state in matrices)

    def _convolution_flops(
        self, node: Node, given: TensorSpec, weight: TensorSpec, transposed: bool
    ) -> int:
        """Return two operations per weight and place at which the kernel is laid."""
        shape = self.shape(weight)
        laid = given if transposed else node.tensors[0]
        return 2 * self.numel(laid) * math.prod(shape[1:])

    def _einsum_sizes(self, node: Node, operands: list[TensorSpec]) -> dict[str, int]:
        equation = next((arg for arg in node.args if isinstance(arg, str)), "")
        terms = equation.split("->")[0].replace(" ", "").split(",")
        sizes: dict[str, int] = {}
        for term, spec in zip(terms, operands, strict=False):
            for letter, size in zip(reversed(term), reversed(self.shape(spec)), strict=False):
                sizes[letter] = size
        return sizes
