"""What limits a plan, and what would have to change to do better or to fit at all."""

from __future__ import annotations

from autosplit.cost import CostModel, PlanCost
from autosplit.units import format_bytes, format_seconds, format_share

_LARGE_LAYER = 0.2
"""Share of the total from which the slowest layer is worth a remark."""

_LARGE_BUBBLE = 0.25
_LARGE_TRANSFER = 0.2


def remarks(model: CostModel, cost: PlanCost, recomputed: int = 0) -> tuple[str, ...]:
    """Return what limits this plan, and what it counts on that an export does not do by itself.

    Parameters
    ----------
    model, cost
        What the plan costs.
    recomputed
        Number of layers that are computed again in backward.
    """
    found = [
        _slowest_layer(model),
        _transfers(cost),
        _bubble(model),
        _replicas(model),
        _recomputed(recomputed),
    ]
    return tuple(remark for remark in found if remark)


def _slowest_layer(model: CostModel) -> str | None:
    """No stage is faster than its slowest layer, whatever the boundaries."""
    times = [f + b for f, b in zip(model.times.forward_s, model.times.backward_s, strict=True)]
    total = sum(times)
    slowest = max(range(len(times)), key=times.__getitem__)
    share = times[slowest] / total if total else 0.0
    # Below an even share for every stage the layer does not limit anything.
    if share < max(_LARGE_LAYER, 1 / model.schedule.ranks):
        return None
    name = model.graph.layers[slowest].name
    return (
        f"layer {name} alone is {format_share(share)} of the total: no plan beats {1 / share:.2f}×"
    )


def _transfers(cost: PlanCost) -> str | None:
    slowest = max(
        range(len(cost.boundaries)), key=lambda b: cost.boundaries[b].total_s, default=None
    )
    if slowest is None:
        return None
    boundary = cost.boundaries[slowest]
    share = boundary.total_s / cost.bottleneck_s if cost.bottleneck_s else 0.0
    if share < _LARGE_TRANSFER:
        return None
    return (
        f"sending across boundary {slowest} ({format_bytes(boundary.forward_bytes)}) takes "
        f"{format_seconds(boundary.total_s)}, {format_share(share)} of the busiest stage: "
        "a faster link would help"
    )


def _bubble(model: CostModel) -> str | None:
    """Fill and drain of a balanced pipeline idle (S - 1) / (M + S - 1) of the step."""
    schedule = model.schedule
    if not model.graph.training or schedule.ranks == 1:
        return None
    bubble = (schedule.ranks - 1) / (schedule.chunks * schedule.microbatches + schedule.ranks - 1)
    if bubble < _LARGE_BUBBLE:
        return None
    doubled = (schedule.ranks - 1) / (
        2 * schedule.chunks * schedule.microbatches + schedule.ranks - 1
    )
    return (
        f"filling and draining the pipeline idles {format_share(bubble)} of a step: "
        f"with {2 * schedule.microbatches} micro-batches it would be {format_share(doubled)}"
    )


def _replicas(model: CostModel) -> str | None:
    if model.replicas == 1:
        return None
    divided = ", and divide parameters and optimizer state" if model.divided else ""
    return (
        f"{model.replicas} copies of the pipeline share the rows of a step, each on devices of its "
        f"own, and sum their gradients{divided}: launch.sh starts "
        f"{model.replicas * model.schedule.ranks} processes"
    )


def _recomputed(layers: int) -> str | None:
    if not layers:
        return None
    return (
        f"the plan counts on {layers} layers being computed again in backward; an export does so "
        "by the modules that hold them (routing.json)"
    )
