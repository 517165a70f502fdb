"""What would have to change for a better plan."""

from __future__ import annotations

import math
from collections import defaultdict

from autosplit.types import LayerProfile, Profile
from autosplit.units import format_seconds, format_share

_WORTH_SAYING = 0.2
_LARGEST_DIFFERENCE = 0.1
_MEDIAN_ERROR = 1.2533 / 1.349
_NINETY_PERCENT = 1.645


def layer_s(layer: LayerProfile) -> float:
    """Return forward plus backward seconds of a layer."""
    return layer.forward.median_s + layer.backward.median_s


def total_s(profile: Profile) -> float:
    """Return forward plus backward seconds of all layers."""
    return sum(layer_s(layer) for layer in profile.layers)


def precision(profile: Profile) -> float:
    """Return the relative error of the sum over layers that 90 % of repeats stay within.

    The median of ``n`` normal samples has a standard error of ``1.2533 s / sqrt(n)``, and their
    interquartile range is ``1.349 s``. Layers that are alike share their samples, so their
    errors add up; those of different layers are taken to be independent.
    """
    errors: dict[str, float] = defaultdict(float)
    for layer in profile.layers:
        for timing in (layer.forward, layer.backward):
            error = _MEDIAN_ERROR * timing.spread_s / math.sqrt(timing.samples)
            errors[layer.structure] += error
    total = total_s(profile)
    return _NINETY_PERCENT * math.hypot(*errors.values()) / total if total else 0.0


def advise(profile: Profile) -> tuple[str, ...]:
    """Return remarks on what limits every plan for this profile.

    No stage is faster than the slowest layer it holds, so the speed-up over one device is at
    most total time / slowest layer.
    """
    return (*_difference(profile), *_bottleneck(profile))


def _bottleneck(profile: Profile) -> tuple[str, ...]:
    total = total_s(profile)
    slowest = max(profile.layers, key=layer_s)
    share = layer_s(slowest) / total if total else 0.0
    if share < _WORTH_SAYING:
        return ()
    return (
        f"layer {slowest.name} alone is {format_share(share)} of the total: "
        f"no plan beats {1 / share:.2f}×",
    )


def _difference(profile: Profile) -> tuple[str, ...]:
    """Explain layers that do not sum to the whole step."""
    whole = profile.whole
    if whole is None or abs(whole.ratio - 1) <= _LARGEST_DIFFERENCE:
        return ()
    told = f"layers sum to {whole.ratio:.2f}× the whole"
    if whole.ratio < 1:
        reasons = "its caches are colder, or the machine was busy"
        return (f"{told}, which runs slower in one piece: {reasons}; --calibrate corrects it",)
    text = (
        f"{told}: each pays for being entered alone, and plans take "
        f"{format_seconds(whole.offset_s)} off each but the first of a stage"
    )
    entered = sum(layer.backward.median_s > 0 for layer in profile.layers) or len(profile.layers)
    whole_s = whole.forward_s + whole.backward_s
    left = whole.ratio - (entered - 1) * whole.offset_s / whole_s if whole_s else 1.0
    if left - 1 > _LARGEST_DIFFERENCE:
        text += f", which leaves {left:.2f}×; --calibrate corrects the rest"
    return (text,)
