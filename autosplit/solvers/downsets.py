"""All downsets of a window, listed by depth-first search: the exact source of boundaries."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from autosplit.solvers.cuts import SLACK, Cut, TooManyError, Window, pins_in, within
from autosplit.solvers.instance import Bools, Instance, Ints, unpack


class AllCuts:
    """All downsets of a window, found by search over the nodes it leaves free.

    Parameters
    ----------
    limit
        Most downsets per boundary.
    steps
        Most steps of the search per boundary.
    deadline
        Value of ``time.monotonic`` at which the search gives up.
    """

    def __init__(
        self, inst: Instance, limit: int = 20_000, steps: int = 250_000, deadline: float = np.inf
    ) -> None:
        self.inst, self.limit, self.steps, self.deadline = inst, limit, steps, deadline

    def cut(self, boundary: int, windows: Sequence[Window]) -> Cut | None:
        """Return all downsets in any of the windows.

        Raises
        ------
        TooManyError
            If there are more than the limit.
        """
        window = windows[0]
        for other in windows[1:]:
            window = window.union(other)
        bounds = self._decided(boundary, window)
        if bounds is None:
            return None
        base, free = bounds
        parts = [_Search(self, base, free, part).run() for part in _disjoint(windows)]
        masks = sorted(set().union(*parts))
        if not masks:
            return None
        width = max(1, (len(free) + 7) // 8)
        packed = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in masks), np.uint8)
        bits = unpack(packed.reshape(len(masks), width), 8 * width)[:, : len(free)]
        return Cut(self.inst, base, free, bits)

    def _decided(self, boundary: int, window: Window) -> tuple[Bools, Ints] | None:
        """Return the nodes that must lie before the boundary, and those that may."""
        inst = self.inst
        slack = SLACK * max(1.0, abs(window.high))
        before, after = inst.weights_before, inst.weights_after
        total = inst.weights.sum(axis=0)
        outside = (before[:, 0] > window.high + slack) | (inst.earliest >= boundary)
        inside = (total[0] - after[:, 0] < window.low - slack) | (inst.latest < boundary)
        outside |= ~within(before, window.before_flight, window.before_bytes)
        inside |= ~within(after, window.after_flight, window.after_bytes)
        if (inside & outside).any():
            return None
        return inside, np.flatnonzero(~inside & ~outside)


def _disjoint(windows: Sequence[Window]) -> list[Window]:
    """Merge windows whose ranges of work overlap, so that no downset is searched twice."""
    merged: list[Window] = []
    for window in sorted(windows, key=lambda each: each.low):
        if merged and window.low <= merged[-1].high:
            merged[-1] = merged[-1].union(window)
        else:
            merged.append(window)
    return merged


class _Search:
    """Depth-first search over the free nodes: take the lowest one, or leave it and all after it.

    Sets of free nodes and of nets are Python integers used as bit sets, numbered within the
    window only, so that the cost does not grow with the graph.
    """

    def __init__(self, source: AllCuts, base: Bools, free: Ints, window: Window) -> None:
        inst = source.inst
        self.source, self.window = source, window
        self.slack = SLACK * max(1.0, abs(window.high))
        self.weight = inst.reference[free].tolist()
        self.start = float(inst.reference[base].sum())
        self.before = inst.weights[:, 1] + window.before_flight * inst.weights[:, 2]
        self.after = inst.weights[:, 1] + window.after_flight * inst.weights[:, 2]
        self.use_memory = bool(np.isfinite(window.before_bytes) or np.isfinite(window.after_bytes))
        self.before_start = float(self.before[base].sum())
        self.after_start = float(self.after.sum() - self.after[base].sum() - self.after[free].sum())
        self.before_free = self.before[free].tolist()
        self.after_free = self.after[free].tolist()
        reach = unpack(inst.descendants[free], inst.num_nodes)[:, free]
        self.descendants = [_mask(row) for row in reach]
        self.everything = (1 << len(free)) - 1
        self._read_nets(base, free)

    def _read_nets(self, base: Bools, free: Ints) -> None:
        """Give each net that can change its state here a bit and its free pins a mask."""
        inst = self.source.inst
        loose = np.zeros(inst.num_nodes, bool)
        loose[free] = True
        inside, open_pins = pins_in(inst, base), pins_in(inst, loose)
        outside = inst.net_size - inside - open_pins + inst.to_end
        cost = inst.least_cost
        self.locked_start = float(cost[(inside > 0) & (outside > 0)].sum())
        where = np.full(inst.num_nodes, -1)
        where[free] = np.arange(len(free))
        self.nets_at: list[list[tuple[int, float, int, bool, bool]]] = [[] for _ in free]
        undecided = (open_pins > 0) & ((inside == 0) | (outside == 0)) & (cost > 0)
        for bit, net in enumerate(np.flatnonzero(undecided)):
            spots = where[inst.net_pins[inst.net_start[net] : inst.net_start[net + 1]]]
            spots = spots[spots >= 0].tolist()
            mask = sum(1 << spot for spot in spots)
            entry = (mask, float(cost[net]), 1 << bit, bool(inside[net]), bool(outside[net]))
            for spot in spots:
                self.nets_at[spot].append(entry)

    def run(self) -> set[int]:
        """Return the masks of all downsets in the window."""
        window, slack = self.window, self.slack
        low, high = window.low - slack, window.high + slack
        most_crossing = window.crossing + slack
        most_before = window.before_bytes * (1 + SLACK)
        most_after = window.after_bytes * (1 + SLACK)
        left, right = window.left, window.right
        source = self.source
        found: set[int] = set()
        steps = 0
        stack = [
            (
                *(0, self.everything, self.start, self.start + sum(self.weight)),
                *(0, self.locked_start, self.before_start, self.after_start),
            )
        ]
        while stack:
            taken, free, least, most, locked, cost, before, after = stack.pop()
            while True:
                steps += 1
                if steps > source.steps or (
                    steps % 4096 == 0 and time.monotonic() > source.deadline
                ):
                    raise TooManyError
                if (
                    least + left * cost > high
                    or most - right * cost < low
                    or cost > most_crossing
                    or (self.use_memory and (before > most_before or after > most_after))
                ):
                    break
                if not free:
                    found.add(taken)
                    if len(found) > source.limit:
                        raise TooManyError
                    break
                bit = free & -free
                node = bit.bit_length() - 1
                dropped = self.descendants[node] & free
                stack.append(
                    self._leave(taken, free, dropped, least, most, locked, cost, before, after)
                )
                taken |= bit
                free ^= bit
                least += self.weight[node]
                before += self.before_free[node]
                excluded = self.everything & ~taken & ~free
                for pins, price, net, _, outside in self.nets_at[node]:
                    if not locked & net and (outside or pins & excluded):
                        locked |= net
                        cost += price
        return found

    def _leave(
        self,
        taken: int,
        free: int,
        dropped: int,
        least: float,
        most: float,
        locked: int,
        cost: float,
        before: float,
        after: float,
    ) -> tuple[int, int, float, float, int, float, float, float]:
        """Return the state in which the nodes ``dropped`` stay behind the boundary."""
        rest = dropped
        while rest:
            bit = rest & -rest
            node = bit.bit_length() - 1
            rest ^= bit
            most -= self.weight[node]
            after += self.after_free[node]
            for pins, price, net, inside, _ in self.nets_at[node]:
                if not locked & net and (inside or pins & taken):
                    locked |= net
                    cost += price
        return taken, free & ~dropped, least, most, locked, cost, before, after


def _mask(row: Bools) -> int:
    return int.from_bytes(np.packbits(row, bitorder="little").tobytes(), "little")
