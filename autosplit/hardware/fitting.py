"""Factors from a measured profile: least squares over its layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autosplit.errors import DataError
from autosplit.hardware.factors import Factors, assumed
from autosplit.hardware.roofline import Roofline, ideal_s
from autosplit.hardware.table import DeviceSpec
from autosplit.types import FAMILIES, Family, OperatorWork, Profile

Array = npt.NDArray[np.float64]

_LEAST_SLOWDOWN = 0.1
"""No family is taken to be more than ten times as fast as the table says."""


@dataclass(frozen=True)
class Fit:
    """Factors, and how well they explain the profile they come from.

    Parameters
    ----------
    factors
        What was fitted; families without layers keep what is assumed.
    fitted
        Families that the profile has.
    median_error, worst_error
        Relative error of the forward or backward of a layer.
    total_error
        Relative error of the sum of all layers.
    layers
        Layers that were compared.
    """

    factors: Factors
    fitted: tuple[Family, ...]
    median_error: float
    worst_error: float
    total_error: float
    layers: int

    @property
    def above_peak(self) -> tuple[Family, ...]:
        """Families that run faster than the table says the device can."""
        return tuple(each for each in self.fitted if self.factors.efficiency[each] > 1)


def fit(profile: Profile, device: DeviceSpec) -> Fit:
    """Fit efficiencies and the time to start an operation.

    The seconds of a layer are linear in ``1 / efficiency`` of each family and in the time to
    start an operation. Errors are weighed relative to the time of each layer. What the layers
    leave open stays as near as possible to what is assumed, and nothing goes below a floor.

    Raises
    ------
    DataError
        If the profile was not measured, or does not know what its layers compute.
    """
    if profile.device.clock == "model":
        raise DataError("nothing can be fitted to a profile that is itself modelled")
    rows, seconds = _system(profile, device)
    if not rows:
        raise DataError(
            "the profile does not know what its layers compute",
            hint="profile the model again with this version",
        )
    default = assumed()
    start = np.array([*(1 / default.efficiency[family] for family in FAMILIES), default.start_s])
    floor = np.array([*(_LEAST_SLOWDOWN for _ in FAMILIES), 0.0])
    matrix, target = np.array(rows), np.array(seconds)
    found = _bounded(matrix / target[:, None], np.ones_like(target), start, floor)
    factors = Factors(
        {family: float(1 / slow) for family, slow in zip(FAMILIES, found, strict=False)},
        float(found[-1]),
        f"fitted to {profile.model.spec.rsplit('/', 1)[-1]} on {profile.device.name}",
        device.key,
    )
    predicted = _predicted(profile, Roofline(device, factors))
    errors = np.abs(predicted / target - 1)
    used = [bool(matrix[:, place].any()) for place in range(len(FAMILIES))]
    return Fit(
        factors,
        tuple(family for family, there in zip(FAMILIES, used, strict=True) if there),
        float(np.median(errors)),
        float(errors.max()),
        float(abs(predicted.sum() / target.sum() - 1)),
        len(profile.layers),
    )


def _system(profile: Profile, device: DeviceSpec) -> tuple[list[list[float]], list[float]]:
    """Return a row of ideal seconds by family and operations, and the seconds, per direction."""
    rows: list[list[float]] = []
    seconds: list[float] = []
    for layer in profile.layers:
        for backward, timing in ((False, layer.forward), (True, layer.backward)):
            if layer.work and timing.median_s > 0:
                rows.append(_row(layer.work, device, backward))
                seconds.append(timing.median_s)
    return rows, seconds


def _row(work: Sequence[OperatorWork], device: DeviceSpec, backward: bool) -> list[float]:
    row = dict.fromkeys(FAMILIES, 0.0)
    operations = 0
    for each in work:
        if backward:
            row[each.family] += ideal_s(device, each, each.backward_flops, each.backward_bytes)
            operations += each.backward_operations
        else:
            row[each.family] += ideal_s(device, each, each.flops, each.moved_bytes)
            operations += each.operations
    return [*row.values(), float(operations)]


def _predicted(profile: Profile, model: Roofline) -> Array:
    found: list[float] = []
    for layer in profile.layers:
        if layer.work and layer.forward.median_s > 0:
            found.append(model.forward_s(layer.work))
        if layer.work and layer.backward.median_s > 0:
            found.append(model.backward_s(layer.work))
    return np.array(found)


def _bounded(matrix: Array, target: Array, start: Array, floor: Array) -> Array:
    """Return ``x >= floor`` with ``matrix @ x`` near ``target``, else as near to ``start``.

    Least squares over the free entries; those that fall below the floor are held there, one
    after another, the furthest below first.
    """
    scale = np.where(start > 0, start, 1.0)
    free = np.ones(len(start), dtype=bool)
    found = start.copy()
    while free.any():
        held = np.where(free, start, floor)
        step = np.linalg.lstsq((matrix * scale)[:, free], target - matrix @ held, rcond=None)[0]
        found = held.copy()
        found[free] += step * scale[free]
        below = np.where(free, (floor - found) / scale, 0.0)
        if below.max() <= 0:
            break
        free[int(below.argmax())] = False
    return np.maximum(found, floor)
