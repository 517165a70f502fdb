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
    excess = _excess(model, stage_of, chosen)
    spare = [
        [layer for layer in layers if layer not in chosen] if excess[rank] else []
        for rank, layers in enumerate(_cheapest(model, stage_of))
    ]
    # What a rank recomputes changes the memory of no other: all are halved at once.
    low, high = [0] * len(spare), [len(layers) for layers in spare]
    while low != high:
        middle = [(least + most) // 2 for least, most in zip(low, high, strict=True)]
        excess = _excess(model, stage_of, _with_first(chosen, spare, middle))
        for rank, exceeded in enumerate(excess):
            if low[rank] < high[rank] and exceeded:
                low[rank] = middle[rank] + 1
            else:
                high[rank] = middle[rank]
    chosen = _with_first(chosen, spare, low)
    return frozenset(recompute) if any(_excess(model, stage_of, chosen)) else chosen


def _with_first(
    chosen: frozenset[int], spare: Sequence[Sequence[int]], counts: Sequence[int]
) -> frozenset[int]:
    """Return layers with the first so many of each rank's spare ones."""
    return chosen.union(*(layers[:count] for layers, count in zip(spare, counts, strict=True)))


def _excess(
    model: CostModel, stage_of: Sequence[int], recompute: Collection[int]
) -> tuple[float, ...]:
    return model.rank_excess(model.evaluate(stage_of, recompute))


def _cheapest(model: CostModel, stage_of: Sequence[int]) -> list[list[int]]:
    """Return the layers of each rank that keep anything, by seconds for each byte."""
    saved = model.memory.saved_bytes
    held: list[list[int]] = [[] for _ in range(model.schedule.ranks)]
    for layer, stage in enumerate(stage_of):
        if saved[layer]:
            held[model.schedule.rank_of(stage)].append(layer)
    for layers in held:
        layers.sort(key=lambda layer: model.times.forward_s[layer] / saved[layer])
    return held
