"""Time from work: the roofline model.

S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model for
multicore architectures, CACM 52 (4), 2009. An operation takes as long as the slower of computing
and moving, ``max(flops / peak, bytes / bandwidth)``; here divided by the efficiency of its
family, plus the time to start it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autosplit.hardware.factors import Factors
from autosplit.hardware.table import DeviceSpec
from autosplit.types import OperatorWork

_ON_MATRIX_UNITS = frozenset({"product", "convolution", "attention"})


@dataclass(frozen=True)
class Roofline:
    """A device with the share of its peak that is reached."""

    device: DeviceSpec
    factors: Factors

    def forward_s(self, work: Sequence[OperatorWork]) -> float:
        """Return the seconds of the forward of a layer."""
        return sum(
            ideal_s(self.device, each, each.flops, each.moved_bytes)
            / self.factors.efficiency[each.family]
            + each.operations * self.factors.start_s
            for each in work
        )

    def backward_s(self, work: Sequence[OperatorWork]) -> float:
        """Return the seconds of the backward of a layer."""
        return sum(
            ideal_s(self.device, each, each.backward_flops, each.backward_bytes)
            / self.factors.efficiency[each.family]
            + each.backward_operations * self.factors.start_s
            for each in work
        )


def ideal_s(device: DeviceSpec, work: OperatorWork, flops: int, nbytes: int) -> float:
    """Return the seconds at the peak of the device."""
    dtype = work.dtype if work.family in _ON_MATRIX_UNITS else "float32"
    return max(flops / device.flops_per_s(dtype), nbytes / device.bytes_per_s)
