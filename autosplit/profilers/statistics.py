"""From samples to estimates: pooled over layers that are alike, with a bound on the error.

Samples stand in arrays of shape (repetitions, layers), in seconds.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from autosplit.types import Timing

Samples: TypeAlias = npt.NDArray[np.float64]
Classes: TypeAlias = Sequence[Sequence[int]]
"""Places of layers whose samples are pooled."""

CONFIDENCE = 0.9
_RESAMPLES = 200
_MOST = 0.9
"""Share of the time in which rare layers are not looked for."""


def classes_of(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the places of equal keys, in the order of their first one."""
    found: dict[Hashable, list[int]] = {}
    for place, key in enumerate(keys):
        found.setdefault(key, []).append(place)
    return list(found.values())


def timings(samples: Samples, classes: Classes) -> list[Timing]:
    """Return the median of each layer over the samples of all layers of its class."""
    found: dict[int, Timing] = {}
    for members in classes:
        pooled = samples[:, members].ravel()
        low, middle, high = np.quantile(pooled, (0.25, 0.5, 0.75))
        timing = Timing(float(middle), float(high - low), int(pooled.size))
        found.update((member, timing) for member in members)
    return [found[place] for place in range(samples.shape[1])]


def pooled(samples: Samples, classes: Classes) -> int:
    """Return how many samples one repetition gives of each layer that matters.

    That is the size of a class such that classes of this size or larger have most of the time.
    """
    total = left = float(np.median(samples, axis=0).sum())
    for members in sorted(classes, key=len, reverse=True):
        left -= float(np.median(samples[:, members], axis=0).sum())
        if left <= (1 - _MOST) * total:
            return len(members)
    return 1


def error_bound(samples: Samples, classes: Classes) -> float:
    """Return a bound on the relative error of the sum of medians over all layers.

    Repetitions are drawn with replacement (bootstrap): the deviation that 90 % of the draws do
    not exceed. Layers of one repetition stay together, since what disturbs one disturbs its
    neighbours.
    """
    repetitions = samples.shape[0]
    total = sum(len(members) * float(np.median(samples[:, members])) for members in classes)
    if total <= 0:
        return 0.0
    draws = np.random.default_rng(0).integers(0, repetitions, (_RESAMPLES, repetitions))
    sums = np.zeros(_RESAMPLES)
    for members in classes:
        drawn = samples[:, members][draws].reshape(_RESAMPLES, -1)
        sums += len(members) * np.median(drawn, axis=1)
    return float(np.quantile(np.abs(sums / total - 1.0), CONFIDENCE))


def drift(totals: npt.NDArray[np.float64]) -> float:
    """Return by which share the last third of the repetitions is slower than the first."""
    third = len(totals) // 3
    if third == 0:
        return 0.0
    first = float(np.median(totals[:third]))
    return float(np.median(totals[-third:])) / first - 1.0 if first > 0 else 0.0
