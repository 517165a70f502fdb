"""Candidate boundaries: sets of nodes that may lie before one boundary of the chain.

A boundary of a plan is a *downset*: a set of nodes that holds all predecessors of its members.
If every load is at most T, the nodes before boundary s weigh at most what s devices can do in T
and those after it at most what the others can; with the cost of the nets that cross, this leaves
a narrow window. A ``CutSource`` lists the downsets of such a window as a ``Cut``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from autosplit.solvers.instance import Bools, Floats, Instance, Ints

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
        return np.flatnonzero(pins_in(self.inst, loose) > 0)

    @cached_property
    def base_pins(self) -> Ints:
        """Number of pins of each net among the base."""
        return pins_in(self.inst, self.base)

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
        total = self.over_boundary(values)
        return total[:, 0], total[:, 1:-2], total[:, -2], total[:, -1]

    def over_boundary(self, values: Floats) -> Floats:
        """Return sums over the nets that cross, shape (downsets, rows of ``values``).

        Parameters
        ----------
        values
            Rows of numbers per net, shape (rows, nets).
        """
        return self._sums_nested(values) if self.nested else self._sums_crossing(values)

    def _sums_crossing(self, values: Floats) -> Floats:
        """Return sums over the crossing nets for each downset."""
        inst = self.inst
        alive = (self.base_pins > 0) & (inst.to_end | (self.base_pins < inst.net_size))
        alive[self.varying_nets] = False
        total = np.broadcast_to(values[:, alive].sum(axis=1), (len(self), len(values))).copy()
        nets = self.varying_nets
        if len(nets):
            inside = self.pins_inside(nets)
            cut = (inside > 0) & (inst.to_end[nets] | (inside < inst.net_size[nets]))
            total += cut @ values[:, nets].T
        return total

    def _sums_nested(self, values: Floats) -> Floats:
        """Return the same for growing downsets, where a net crosses an interval of them."""
        inst, rows = self.inst, len(self)
        change = np.zeros((rows + 1, len(values)))
        if inst.num_nets:
            entry = np.where(self.base, 0, rows)
            entry[self.free] = np.where(self.bits.any(axis=0), self.bits.argmax(axis=0), rows)
            entries, starts = entry[inst.net_pins], inst.net_start[:-1]
            first = np.minimum.reduceat(entries, starts)
            last = np.where(inst.to_end, rows, np.maximum.reduceat(entries, starts))
            # Of a large graph few nets cross any of them.
            some = np.flatnonzero(first < last)
            np.add.at(change, first[some], values[:, some].T)
            np.subtract.at(change, last[some], values[:, some].T)
        total: Floats = np.maximum(change.cumsum(axis=0)[:rows], 0.0)
        return total

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
            ok &= within(sums, window.before_flight, window.before_bytes)
            ok &= within(rest, window.after_flight, window.after_bytes)
        result: Bools = ok
        return result


def within(sums: Floats, in_flight: float, budget: float) -> Bools:
    """Return which rows of work, static and saved bytes fit a budget."""
    result: Bools = sums[:, 1] + in_flight * sums[:, 2] <= budget * (1 + SLACK)
    return result


def pins_in(inst: Instance, chosen: Bools) -> Ints:
    """Return how many pins of each net are chosen."""
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
    """Where candidate boundaries come from: all downsets, or the prefixes of one order."""

    def cut(self, boundary: int, windows: Sequence[Window]) -> Cut | None:
        """Return downsets before ``boundary`` (1..S-1) in any of the windows."""
        ...
