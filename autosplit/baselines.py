"""Plans as people make them by hand, to compare with: one rule each, on the same cost model.

All divide the layers in their running order into consecutive stages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from autosplit.constraints import Constraints
from autosplit.cost import CostModel
from autosplit.registry import Registry
from autosplit.simulate import play

Rule = Callable[[CostModel], "tuple[int, ...] | None"]
"""Return the stage of each layer; None where the rule does not apply."""

BASELINES: Registry[Rule] = Registry("baseline")


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a baseline does.

    Parameters
    ----------
    name
        Its name in ``BASELINES``.
    step_s, bottleneck_s
        As in ``Plan``.
    memory_bytes
        Peak memory of the fullest rank.
    fits
        Whether every rank fits its device and every wish is granted.
    """

    name: str
    step_s: float
    bottleneck_s: float
    memory_bytes: int
    fits: bool


def compare(model: CostModel, wishes: Constraints | None = None) -> tuple[Comparison, ...]:
    """Return what every baseline costs, in the order of their names; none looks at wishes."""
    found = []
    for name in BASELINES:
        stage_of = BASELINES[name](model)
        if stage_of is None:
            continue
        cost = model.evaluate(stage_of)
        found.append(
            Comparison(
                name=name,
                step_s=play(model, cost).step_s,
                bottleneck_s=cost.bottleneck_s,
                memory_bytes=max(model.rank_bytes(cost)),
                fits=not any(model.rank_excess(cost))
                and (wishes is None or wishes.met_by(stage_of)),
            )
        )
    return tuple(found)


@BASELINES.register("uniform")
def uniform(model: CostModel) -> tuple[int, ...]:
    """Give every stage the same number of layers."""
    return balanced([1.0] * len(model.graph), model.schedule.stages)


@BASELINES.register("parameters")
def parameters(model: CostModel) -> tuple[int, ...]:
    """Give every stage about the same bytes of parameters."""
    weights = [0.0] * len(model.graph)
    for state in model.graph.states:
        if state.layers:
            weights[state.layers[0]] += state.nbytes
    return balanced(weights, model.schedule.stages)


@BASELINES.register("flops")
def flops(model: CostModel) -> tuple[int, ...] | None:
    """Give every stage about the same floating-point operations."""
    counts = [layer.flops for layer in model.graph.layers]
    if any(count is None for count in counts):
        return None
    return balanced([float(count or 0) for count in counts], model.schedule.stages)


@BASELINES.register("time")
def time(model: CostModel) -> tuple[int, ...]:
    """Give every stage about the same time, transfers and memory left out."""
    pairs = zip(model.times.forward_s, model.times.backward_s, strict=True)
    return balanced([forward + backward for forward, backward in pairs], model.schedule.stages)


@BASELINES.register("memory")
def memory(model: CostModel) -> tuple[int, ...]:
    """Fill one device after the other, as device maps for inference do."""
    needs = [model.memory.least_bytes(layer, 1) for layer in range(len(model.graph))]
    stages = model.schedule.stages
    share = sum(needs) / stages
    stage_of: list[int] = []
    stage, filled = 0, 0.0
    for layer, need in enumerate(needs):
        budget = min(model.places[stage].budget_bytes, max(share, need))
        left = len(needs) - layer
        full = filled and filled + need > budget
        if stage < stages - 1 and (full or left <= stages - 1 - stage):
            stage, filled = stage + 1, 0.0
        stage_of.append(stage)
        filled += need
    return tuple(stage_of)


def balanced(weights: Sequence[float], stages: int) -> tuple[int, ...]:
    """Cut a row of weights into ``stages`` pieces so that the heaviest is lightest.

    The exact dynamic program over prefixes (linear partitioning).
    """
    count = len(weights)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    best = before.copy()
    ends = np.arange(count + 1)
    cuts = []
    for pieces in range(2, stages + 1):
        # The last piece grows as the cut moves left, the rest shrinks: meet in between.
        low, high = np.full(count + 1, pieces - 1), np.maximum(ends - 1, pieces - 1)
        while (low < high).any():
            middle = (low + high) // 2
            right = (low < high) & (best[middle] < before - before[middle])
            low, high = np.where(right, middle + 1, low), np.where(right, high, middle)
        left = np.maximum(low - 1, pieces - 1)
        value, other = (np.maximum(best[cut], before - before[cut]) for cut in (low, left))
        cuts.append(np.where(other < value, left, low))
        best = np.where(ends < pieces, np.inf, np.minimum(value, other))
    starts = [count]
    for cut in reversed(cuts):
        starts.append(int(cut[starts[-1]]))
    return tuple(np.searchsorted(sorted(starts[1:]), np.arange(count), side="right").tolist())
