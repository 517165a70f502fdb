"""The same layers at other sizes of the input, and what they cost at sizes in between."""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autosplit.checks import require, require_finite
from autosplit.errors import UsageError


@dataclass(frozen=True, slots=True)
class LayerSample:
    """What one layer costs at one size; fields as in ``LayerProfile``."""

    forward_s: float
    backward_s: float
    workspace_bytes: int = 0
    flops: int | None = None
    weight_gradient_s: float = 0.0

    def __post_init__(self) -> None:
        require_finite(
            self, "forward_s", "backward_s", "workspace_bytes", "flops", "weight_gradient_s"
        )


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """All layers of a profile at one size.

    Parameters
    ----------
    sizes
        ``(symbol, value)`` of every symbol of the program: ``(("batch", 4), ("seq", 128))``.
    layers
        One entry per layer, in the order of the profile.
    storage_bytes
        Bytes of each of ``Profile.storages``.
    """

    sizes: tuple[tuple[str, int], ...]
    layers: tuple[LayerSample, ...]
    storage_bytes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        require(self, bool(self.sizes), "a point of a sweep needs a size")

    def size(self, symbol: str) -> int:
        """Return the value of a symbol."""
        return dict(self.sizes)[symbol]


def mixture(
    points: Sequence[SweepPoint], sizes: Mapping[str, int]
) -> tuple[tuple[SweepPoint, float], ...]:
    """Return the measured points around given sizes and the share of each, which sum to one.

    What is mixed so is exact at each point and linear between neighbours.

    Parameters
    ----------
    points
        All combinations of the measured values of each symbol.
    sizes
        Value of every symbol, each within the measured ones.

    Raises
    ------
    UsageError
        If a size lies outside of what was measured.
    """
    shares = [(point, 1.0) for point in points]
    for symbol, wanted in sizes.items():
        around = _around(sorted({point.size(symbol) for point in points}), wanted, symbol)
        shares = [
            (point, share * around[point.size(symbol)])
            for point, share in shares
            if point.size(symbol) in around
        ]
    return tuple(shares)


def _around(known: Sequence[int], wanted: int, symbol: str) -> dict[int, float]:
    """Return the measured sizes next to the one asked for, and the share of each."""
    if not known[0] <= wanted <= known[-1]:
        raise UsageError(
            f"no prediction for {symbol} = {wanted}",
            cause=f"it was measured from {known[0]} to {known[-1]}",
            hint="profile again with that size in the sweep",
        )
    place = bisect.bisect_left(known, wanted)
    if known[place] == wanted:
        return {wanted: 1.0}
    lower, upper = known[place - 1], known[place]
    share = (wanted - lower) / (upper - lower)
    return {lower: 1.0 - share, upper: share}
