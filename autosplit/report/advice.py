"""What would have to change for a better plan."""

from __future__ import annotations

from autosplit.types import LayerProfile, Profile
from autosplit.units import format_share

_WORTH_SAYING = 0.2


def layer_s(layer: LayerProfile) -> float:
    """Return forward plus backward seconds of a layer."""
    return layer.forward.median_s + layer.backward.median_s


def total_s(profile: Profile) -> float:
    """Return forward plus backward seconds of all layers."""
    return sum(layer_s(layer) for layer in profile.layers)


def advise(profile: Profile) -> tuple[str, ...]:
    """Return remarks on what limits every plan for this profile.

    No stage is faster than the slowest layer it holds, so the speed-up over one device is at
    most total time / slowest layer.
    """
    total = total_s(profile)
    slowest = max(profile.layers, key=layer_s)
    share = layer_s(slowest) / total if total else 0.0
    if share < _WORTH_SAYING:
        return ()
    return (
        f"layer {slowest.name} alone is {format_share(share)} of the total: "
        f"no plan beats {1 / share:.2f}×",
    )
