"""Candidate boundaries: sets of nodes that may lie before one boundary of the chain.

A boundary of a plan is a *downset*: a set of nodes that holds all predecessors of its members.
If every load is at most T, the nodes before boundary s weigh at most what s devices can do in T
and those after it at most what the others can; with the cost of the nets that cross, this leaves
a narrow window. A ``CutSource`` gives the downsets of such a window: all of them
(``AllCuts``, exact) or the prefixes of one topological order (``PrefixCuts``, a heuristic).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from autosplit.solvers.instance import Bools, Floats, Instance, Ints, unpack

SLACK = 1e-9


class TooManyError(Exception):
    """The window holds more downsets than the limit, or listing them took too long."""


@dataclass(frozen=True, slots=True)
class Window:
    """What must hold for the nodes before a boundary.

    Parameters
    ----------
    low, high
        ``reference + left * crossing <= high`` and ``reference - right * crossing >= low``,
        where ``crossing`` is the least cost of the nets that cross.
    left, right
        Pace with which crossing nets weigh on either side; 0 where they weigh nothing.
    crossing
        Most that the crossing nets may cost.
    before_bytes, after_bytes
        Memory of the devices on either side.
    before_flight, after_flight
        Least number of micro-batches in flight on either side.
    """

    low: float
    high: float
    left: float
    right: float
    crossing: float
    before_bytes: float
    after_bytes: float
    before_flight: float
    after_flight: float

    def union(self, other: Window) -> Window:
        """Return a window that holds both."""
        return Window(
            min(self.low, other.low),
            max(self.high, other.high),
            min(self.left, other.left),
            min(self.right, other.right),
            max(self.crossing, other.crossing),
            max(self.before_bytes, other.before_bytes),
            max(self.after_bytes, other.after_bytes),
            min(self.before_flight, other.before_flight),
            min(self.after_flight, other.after_flight),
        )


class Cut:
    """A list of downsets for one boundary, in order of their reference work.

    Attributes
    ----------
    base
        Nodes in all of them.
    free
        Indices of the nodes that are in some and not in others.
    bits
        Membership of the free nodes, shape (downsets, free).
    nested
        Whether each downset contains the one before it.
    """

    def __init__(
        self, inst: Instance, base: Bools, free: Ints, bits: Bools, nested: bool = False
    ) -> None:
        self.inst, self.base, self.free, self.nested = inst, base, free, nested
        reference = inst.reference[base].sum() + bits @ inst.reference[free]
        if nested:
            self.bits, self.reference = bits, reference
        else:
            by_weight = np.argsort(reference, kind="stable")
            self.bits, self.reference = bits[by_weight], reference[by_weight]

    def __len__(self) -> int:
        return len(self.bits)

    def keep(self, rows: Ints | Bools) -> Cut:
        """Return the cut with these downsets only."""
        return Cut(self.inst, self.base, self.free, self.bits[rows], self.nested)

    def members(self, row: int) -> Bools:
        """Return the nodes of one downset."""
        inside = self.base.copy()
        inside[self.free] = self.bits[row]
        return inside

    def total(self, weights: Floats) -> Floats:
        """Return the weight of each downset."""
        result: Floats = weights[self.base].sum(axis=0) + self.bits @ weights[self.free]
        return result

    def over(self, columns: Ints) -> Bools:
        """Return membership of chosen nodes, shape (downsets, columns)."""
        where = np.full(self.inst.num_nodes, -1)
        where[self.free] = np.arange(len(self.free))
        spot = where[columns]
        out = np.broadcast_to(self.base[columns], (len(self), len(columns))).copy()
        out[:, spot >= 0] = self.bits[:, spot[spot >= 0]]
        return out

    @cached_property
    def size(self) -> Ints:
        """Number of nodes in each downset."""
        result: Ints = int(self.base.sum()) + self.bits.sum(axis=1)
        return result

    @cached_property
    def varying_nets(self) -> Ints:
        """Nets with a free pin."""
        loose = np.zeros(self.inst.num_nodes, bool)
        loose[self.free] = True
        return np.flatnonzero(_pins_in(self.inst, loose) > 0)

    @cached_property
    def base_pins(self) -> Ints:
        """Number of pins of each net among the base."""
        return _pins_in(self.inst, self.base)

    def pins_inside(self, nets: Ints) -> Floats:
        """Return how many pins of each net lie inside each downset."""
        inst = self.inst
        where = np.full(inst.num_nodes, -1)
        where[self.free] = np.arange(len(self.free))
        incidence = np.zeros((len(self.free), len(nets)), np.float32)
        for column, net in enumerate(nets):
            spot = where[inst.net_pins[inst.net_start[net] : inst.net_start[net + 1]]]
            incidence[spot[spot >= 0], column] = 1
        result: Floats = self.base_pins[nets] + self.bits.astype(np.float32) @ incidence
        return result

    @cached_property
    def crossing(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Least cost, cost per link (downsets, links), bytes received and bytes returned."""
        inst = self.inst
        values = np.vstack([inst.least_cost, inst.net_cost, inst.received, inst.returned])
        alive = (self.base_pins > 0) & (inst.to_end | (self.base_pins < inst.net_size))
        alive[self.varying_nets] = False
        total = np.broadcast_to(values[:, alive].sum(axis=1), (len(self), len(values))).copy()
        nets = self.varying_nets
        if len(nets):
            inside = self.pins_inside(nets)
            cut = (inside > 0) & (inst.to_end[nets] | (inside < inst.net_size[nets]))
            total += cut @ values[:, nets].T
        return total[:, 0], total[:, 1:-2], total[:, -2], total[:, -1]

    def fits(self, window: Window) -> Bools:
        """Return which downsets lie in a window."""
        least = self.crossing[0]
        slack = SLACK * max(1.0, abs(window.high))
        ok = self.reference + window.left * least <= window.high + slack
        ok &= self.reference - window.right * least >= window.low - slack
        ok &= least <= window.crossing + slack
        inst = self.inst
        if np.isfinite(window.before_bytes) or np.isfinite(window.after_bytes):
            sums = self.total(inst.weights)
            rest = inst.weights.sum(axis=0) - sums
            ok &= _within(sums, window.before_flight, window.before_bytes)
            ok &= _within(rest, window.after_flight, window.after_bytes)
        result: Bools = ok
        return result


def _within(sums: Floats, in_flight: float, budget: float) -> Bools:
    result: Bools = sums[:, 1] + in_flight * sums[:, 2] <= budget * (1 + SLACK)
    return result


def _pins_in(inst: Instance, chosen: Bools) -> Ints:
    if not inst.num_nets:
        return np.zeros(0, np.int64)
    result: Ints = np.add.reduceat(chosen[inst.net_pins].astype(np.int64), inst.net_start[:-1])
    return result


def ends(inst: Instance, full: bool) -> Cut:
    """Return the cut before all nodes or, with ``full``, after all nodes."""
    return Cut(
        inst,
        np.full(inst.num_nodes, full),
        np.zeros(0, np.int64),
        np.zeros((1, 0), bool),
        nested=True,
    )


class CutSource(Protocol):
    """Where candidate boundaries come from."""

    def cut(self, boundary: int, windows: Sequence[Window]) -> Cut | None:
        """Return downsets before ``boundary`` (1..S-1) in any of the windows."""
        ...


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
        outside |= ~_within(before, window.before_flight, window.before_bytes)
        inside |= ~_within(after, window.after_flight, window.after_bytes)
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
        inside, open_pins = _pins_in(inst, base), _pins_in(inst, loose)
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
