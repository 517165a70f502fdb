"""Topological orders of a graph, of several tempers, and their prefixes as boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from autosplit.solvers.cuts import SLACK, Cut, Window
from autosplit.solvers.instance import Instance, Ints

Pick = Callable[[list[int], set[int]], int]
"""Position in the list of ready nodes of the one to place next, given those placed."""


def topological_orders(inst: Instance, count: int, seed: int = 0) -> Iterator[list[int]]:
    """Yield up to ``count`` topological orders that respect the fixed nodes, if there is any.

    The first goes by index, the second takes the newest ready node (depth first), the third the
    node that keeps the crossing nets cheapest; the others mix these with seeded chance.
    """
    if (inst.earliest > inst.latest).any():
        return
    rng = random.Random(seed)
    greedy = _least_crossing(inst, rng)
    yield from (_order(inst, pick) for pick in (_by_index, _newest, greedy)[:count])
    mixed: tuple[Pick, ...] = (
        lambda ready, _: rng.randrange(len(ready)),
        lambda ready, _: len(ready) - 1 if rng.random() < 0.8 else rng.randrange(len(ready)),
        greedy,
    )
    for turn in range(max(0, count - 3)):
        yield _order(inst, mixed[turn % len(mixed)])


def _order(inst: Instance, pick: Pick) -> list[int]:
    waiting = [len(before) for before in inst.predecessors]
    earliest, latest = inst.earliest.tolist(), inst.latest.tolist()
    left_until = [0] * inst.num_stages
    for stage in latest:
        left_until[stage] += 1
    current = 0
    order: list[int] = []
    placed: set[int] = set()
    ready: list[int] = []
    held: list[int] = []
    fresh = [node for node, count in enumerate(waiting) if not count]
    while len(order) < inst.num_nodes:
        while not left_until[current]:
            current += 1
            fresh, held = held + fresh, []
        for node in fresh:
            (ready if earliest[node] <= current else held).append(node)
        node = ready.pop(pick(ready, placed))
        order.append(node)
        placed.add(node)
        left_until[latest[node]] -= 1
        fresh = []
        for after in inst.successors[node]:
            waiting[after] -= 1
            if not waiting[after]:
                fresh.append(after)
    return order


def _by_index(ready: list[int], placed: set[int]) -> int:
    return min(range(len(ready)), key=ready.__getitem__)


def _newest(ready: list[int], placed: set[int]) -> int:
    return len(ready) - 1


def _least_crossing(inst: Instance, rng: random.Random) -> Pick:
    """Prefer the node that adds least to the cost of the crossing nets."""
    costs = inst.least_cost.tolist()
    nets = inst.problem.nets

    def change(node: int, placed: set[int]) -> float:
        total = rng.random() * 1e-12
        for net in inst.nets_of[node]:
            pins = nets[net].pins
            inside = sum(pin in placed for pin in pins)
            if inside == 0 and (len(pins) > 1 or nets[net].to_end):
                total += costs[net]
            elif inside == len(pins) - 1 and not nets[net].to_end:
                total -= costs[net]
        return total

    return lambda ready, placed: min(range(len(ready)), key=lambda i: change(ready[i], placed))


class PrefixCuts:
    """Prefixes of one topological order.

    Parameters
    ----------
    most
        Where a window holds more prefixes, they are thinned evenly to this number.
    """

    def __init__(self, inst: Instance, order: Sequence[int], most: int = 1500) -> None:
        self.inst, self.most = inst, most
        self.order: Ints = np.array(order, np.int64)
        self.reference = np.concatenate([[0.0], np.cumsum(inst.reference[self.order])])
        earliest, latest = inst.earliest[self.order], inst.latest[self.order]
        self.most_before = np.concatenate([[-1], np.maximum.accumulate(earliest)])
        self.least_after = np.concatenate(
            [np.minimum.accumulate(latest[::-1])[::-1], [inst.num_stages]]
        )

    def cut(self, boundary: int, windows: Sequence[Window]) -> Cut | None:
        """Return the prefixes of the order that lie in any of the windows."""
        low = min(window.low for window in windows)
        high = max(window.high for window in windows)
        slack = SLACK * max(1.0, abs(high))
        ok = (self.reference >= low - slack) & (self.reference <= high + slack)
        ok &= (self.most_before < boundary) & (self.least_after >= boundary)
        lengths = np.flatnonzero(ok)
        if not len(lengths):
            return None
        if len(lengths) > self.most:
            spread = np.linspace(0, len(lengths) - 1, self.most)
            lengths = lengths[np.unique(spread.astype(np.int64))]
        first, last = lengths[0], lengths[-1]
        base = np.zeros(self.inst.num_nodes, bool)
        base[self.order[:first]] = True
        bits = np.arange(first, last)[None, :] < lengths[:, None]
        return Cut(self.inst, base, self.order[first:last], bits, nested=True)
