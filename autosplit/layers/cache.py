"""Keys and values that generation keeps: read off the attention of the traced forward."""

from __future__ import annotations

from collections.abc import Iterable

from autosplit.layers.operators import kind_of
from autosplit.layers.work import Work
from autosplit.program import Node, Program

_SPREADS = frozenset({"expand", "repeat", "repeatinterleave", "reshape", "view", "getitem"})
"""What a model does to share a head of keys between heads of queries."""


def cache_bytes(program: Program, names: Iterable[str]) -> int:
    """Return the bytes of keys and values that a layer keeps for one token of one row.

    Heads that several queries share count once, where the forward spreads them itself.
    """
    return sum(_of_attention(program, program.node[name]) for name in names)


def _of_attention(program: Program, node: Node) -> int:
    if not kind_of(program, node).startswith("scaleddotproduct"):
        return 0
    work = Work(program)
    _, key, value, *_ = [program.node[name] for name in node.inputs()]
    shape = work.shape(key.tensors[0])
    rows, tokens = (shape[0] if len(shape) > 2 else 1), shape[-2]
    held = sum(
        work.nbytes(_before_spreading(program, each, work).tensors[0]) for each in (key, value)
    )
    return held // max(1, rows * tokens)


def _before_spreading(program: Program, node: Node, work: Work) -> Node:
    """Return the smallest value that a value was spread from."""
    smallest = node
    while node.op == "function" and kind_of(program, node) in _SPREADS:
        node = program.node[node.inputs()[0]]
        if not node.tensors or work.nbytes(node.tensors[0]) > work.nbytes(smallest.tensors[0]):
            break
        smallest = node
    return smallest
