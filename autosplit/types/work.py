"""How much a layer computes and moves, by family of operators: what a time can be modelled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from autosplit.checks import require, require_finite
from autosplit.program import DTYPE_BYTES

Family: TypeAlias = Literal[
    "product", "convolution", "attention", "lookup", "normalization", "pointwise", "copy"
]
"""Operators that reach about the same share of a device's peak."""

FAMILIES: tuple[Family, ...] = (
    "product",
    "convolution",
    "attention",
    "lookup",
    "normalization",
    "pointwise",
    "copy",
)


@dataclass(frozen=True, slots=True)
class OperatorWork:
    """Work of all operations of one family and dtype in a layer, for one micro-batch.

    Parameters
    ----------
    family
        What kind of operations these are.
    dtype
        dtype they compute in.
    operations, backward_operations
        How many are started.
    flops, backward_flops
        Floating-point operations; a multiply-add counts as two.
    moved_bytes, backward_bytes
        Bytes read and written.
    """

    family: Family
    dtype: str
    operations: int = 0
    flops: int = 0
    moved_bytes: int = 0
    backward_operations: int = 0
    backward_flops: int = 0
    backward_bytes: int = 0

    def __post_init__(self) -> None:
        require_finite(self, "operations", "flops", "moved_bytes")
        require_finite(self, "backward_operations", "backward_flops", "backward_bytes")
        require(self, self.dtype in DTYPE_BYTES, f"unknown dtype {self.dtype!r}")
