"""Make a plan fit by computing more of its layers again.

The solvers count what recomputation spares layer by layer; what goes into a recomputed layer, and
is kept for it, depends on its neighbours. Where a plan exceeds a device by that, more layers of
that device are recomputed, those first that spare most for their time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autosplit.cost import CostModel


def with_room(
    model: CostModel, stage_of: Sequence[int], recompute: Collection[int]
) -> frozenset[int]:
    """Return layers to recompute with which every device has room; those given where none do.

    Parameters
    ----------
    model
        Knows what everything costs.
    stage_of
        Stage of each layer.
    recompute
        Layers that are recomputed at least.
    """
    chosen = frozenset(recompute)
    for rank in range(model.schedule.ranks):
        if not _excess(model, stage_of, chosen)[rank]:
            continue
        spare = [layer for layer in _cheapest(model, stage_of, rank) if layer not in chosen]
        low, high = 0, len(spare)
        while low < high:
            middle = (low + high) // 2
            if _excess(model, stage_of, chosen.union(spare[:middle]))[rank]:
                low = middle + 1
            else:
                high = middle
        chosen = chosen.union(spare[:low])
    return frozenset(recompute) if any(_excess(model, stage_of, chosen)) else chosen


def _excess(
    model: CostModel, stage_of: Sequence[int], recompute: Collection[int]
) -> tuple[float, ...]:
    return model.rank_excess(model.evaluate(stage_of, recompute))


def _cheapest(model: CostModel, stage_of: Sequence[int], rank: int) -> list[int]:
    """Return the layers of a device that keep anything, by seconds for each byte."""
    saved = model.memory.saved_bytes
    layers = [
        layer
        for layer, stage in enumerate(stage_of)
        if saved[layer] and model.schedule.rank_of(stage) == rank
    ]
    return sorted(layers, key=lambda layer: model.times.forward_s[layer] / saved[layer])
