"""Compare two sets of named tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from autosplit.types import Comparison

Kind: TypeAlias = Literal["outputs", "loss", "gradients", "buffers", "checkpoint"]
Named: TypeAlias = Mapping[str, Tensor | None]


def compare(kind: Kind, original: Named, export: Named) -> Comparison:
    """Compare tensors by name; None stands for a gradient that does not exist.

    The difference of two tensors is the largest absolute difference of their elements, divided
    by the largest magnitude in the original where that is above 1.
    """
    largest, worst = 0.0, None
    faults = list(_missing(original, export))
    common = [name for name in original if name in export]
    for name in common:
        outcome = _difference(original[name], export[name])
        if isinstance(outcome, str):
            faults.append(f"{name}: {outcome}")
        elif outcome > largest:
            largest, worst = outcome, name
    return Comparison(kind, len(common), largest, worst, tuple(faults))


def merge(comparisons: list[Comparison]) -> Comparison:
    """Join comparisons of one kind into one."""
    largest = max(comparisons, key=lambda each: each.largest)
    return Comparison(
        comparisons[0].kind,
        sum(each.compared for each in comparisons),
        largest.largest,
        largest.worst,
        tuple(fault for each in comparisons for fault in each.faults),
    )


def _missing(original: Named, export: Named) -> Iterator[str]:
    for name in original:
        if name not in export:
            yield f"{name}: not in the export"
    for name in export:
        if name not in original:
            yield f"{name}: not in the original model"


def _difference(original: Tensor | None, export: Tensor | None) -> float | str:
    """Return the difference of two tensors, or in words why there is no number for it."""
    if original is None or export is None:
        if original is export:
            return 0.0
        here, there = ("none", "one") if export is None else ("one", "none")
        return f"{here} in the export, {there} in the original model"
    for what in ("shape", "dtype"):
        found, expected = getattr(export, what), getattr(original, what)
        if found != expected:
            return f"{what} {_plain(found)} instead of {_plain(expected)}"
    if torch.equal(original, export):
        return 0.0
    left, right = _wide(original), _wide(export)
    finite = left.isfinite()
    if not torch.equal(finite, right.isfinite()) or not torch.equal(
        left[~finite].nan_to_num(), right[~finite].nan_to_num()
    ):
        return "NaN or infinite in other places than in the original model"
    left, right = left[finite], right[finite]
    if not left.numel():
        return 0.0
    scale = max(1.0, left.abs().max().item())
    return (left - right).abs().max().item() / scale


def _wide(tensor: Tensor) -> Tensor:
    tensor = tensor.detach().cpu()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _plain(value: torch.Size | torch.dtype) -> str:
    return (
        str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else str(tuple(value))
    )
