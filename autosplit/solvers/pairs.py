"""Stages between two boundaries: what every pair of candidate downsets costs.

For downsets J of one boundary and I of the next, the stage is I without J. Everything a load or
a memory check needs is computed for a block of pairs at once; rows of a block are the upper
downsets I, columns the lower ones J.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from autosplit.solvers.cuts import Cut
from autosplit.solvers.instance import Bools, Floats, Instance, Ints


class Pairs:
    """The stages between the downsets of two neighbouring boundaries.

    Parameters
    ----------
    inst
        The problem.
    lower, upper
        Candidates before and after the stage.
    stage
        Index of the stage.
    """

    def __init__(self, inst: Instance, lower: Cut, upper: Cut, stage: int) -> None:
        self.inst, self.lower, self.upper, self.stage = inst, lower, upper, stage
        self.columns: Ints = np.union1d(lower.free, upper.free).astype(np.int64)
        always = upper.base & ~lower.base
        always[self.columns] = False
        self.always = always

    @cached_property
    def _members(self) -> tuple[Bools, Bools]:
        return self.lower.over(self.columns), self.upper.over(self.columns)

    @cached_property
    def _members_float(self) -> tuple[Floats, Floats]:
        lower, upper = self._members
        return lower.astype(np.float32), upper.astype(np.float32)

    def valid(self, uppers: Ints, lowers: slice) -> Bools:
        """Return which pairs are stages: J inside I and, unless allowed, not equal to it."""
        added = self.upper.size[uppers][:, None] - self.lower.size[lowers][None, :]
        ok: Bools = added >= (0 if self.inst.problem.allow_empty else 1)
        if self.lower.nested and self.upper.nested:
            return ok
        lower, upper = self._members_float
        part = lower[lowers]
        result: Bools = ok & (upper[uppers] @ part.T > part.sum(axis=1)[None, :] - 0.5)
        return result

    def difference(self, weights: Floats, uppers: Ints, lowers: slice) -> Floats:
        """Return the weight of each stage."""
        result: Floats = (
            self.upper.total(weights)[uppers][:, None] - self.lower.total(weights)[lowers][None, :]
        )
        return result

    # ------------------------------------------------------------ communication per device

    @cached_property
    def _uncut(self) -> tuple[float, Floats, Floats]:
        """Return the cost of all nets, and features whose product is the cost of uncut nets.

        A net is uncut at I minus J when as many pins lie in I as in J, or none in J and all in
        I; either is an equality between a number of I and one of J.
        """
        inst = self.inst
        cost = inst.net_cost[0]
        nets = np.union1d(self.lower.varying_nets, self.upper.varying_nets).astype(np.int64)
        below, above = self.lower.base_pins, self.upper.base_pins
        whole = (below == above) | ((below == 0) & (above == inst.net_size))
        whole[nets] = False
        base = float(cost.sum() - cost[whole].sum())
        low, high = self.lower.pins_inside(nets), self.upper.pins_inside(nets)
        left: list[Floats] = []
        right: list[Bools] = []
        for column, net in enumerate(nets):
            pins, size = high[:, column], inst.net_size[net]
            for count in np.intersect1d(low[:, column], pins):
                left.append(cost[net] * (low[:, column] == count))
                right.append(pins == count)
            left.append(cost[net] * (low[:, column] == 0))
            right.append(pins == size)
        if not left:
            return base, np.zeros((len(self.lower), 0)), np.zeros((len(self.upper), 0))
        first, second = np.array(left).T, np.array(right, float).T
        used = first.any(axis=0) & second.any(axis=0)
        return base, first[:, used], second[:, used]

    def paid(self, uppers: Ints, lowers: slice) -> Floats:
        """Return what each stage pays for nets under ``per_device``."""
        base, left, right = self._uncut
        result: Floats = np.maximum(base - right[uppers] @ left[lowers].T, 0.0)
        return result

    # ------------------------------------------------------------ memory

    def memory(self, uppers: Ints, lowers: slice) -> Floats:
        """Return the memory of each stage without its workspace, in bytes."""
        inst, stage = self.inst, self.stage
        weights = inst.static + inst.in_flight[stage] * inst.saved
        total = self.difference(weights, uppers, lowers)
        if inst.factor[stage]:
            received = self.lower.crossing[2][lowers]
            returned = self.upper.crossing[3][uppers]
            if stage == inst.num_stages - 1:
                returned = np.zeros_like(returned)
            total += inst.factor[stage] * (received[None, :] + returned[:, None])
        for shared in inst.problem.shared:
            holds = np.zeros(inst.num_nodes)
            holds[list(shared.nodes)] = 1
            total += shared.static_bytes * (self.difference(holds, uppers, lowers) > 0.5)
        return total

    def add_workspace(self, total: Floats, ok: Bools, uppers: Ints, lowers: slice) -> None:
        """Add the largest workspace of each stage to ``total``, for the pairs ``ok`` only."""
        inst = self.inst
        floor = float(inst.workspace[self.always].max(initial=0.0))
        lower, upper = self._members
        above, below = np.nonzero(ok)
        space = np.full(len(above), floor)
        open_ = np.arange(len(above))
        first = lowers.start or 0
        for column in np.argsort(-inst.workspace[self.columns], kind="stable"):
            need = inst.workspace[self.columns[column]]
            if need <= floor or not len(open_):
                break
            held = upper[uppers[above[open_]], column] & ~lower[first + below[open_], column]
            space[open_[held]] = need
            open_ = open_[~held]
        total[above, below] += space

    # ------------------------------------------------------------ what stages may hold

    def forbidden(self, uppers: Ints, lowers: slice) -> Bools:
        """Return which stages hold nodes that are to stay apart, or alone."""
        problem = self.inst.problem
        size = self.upper.size[uppers][:, None] - self.lower.size[lowers][None, :]
        bad = np.zeros(size.shape, bool)
        for first, second in problem.apart:
            bad |= self._holds_any(first, uppers, lowers) & self._holds_any(second, uppers, lowers)
        for node in problem.alone:
            bad |= self._holds_any((node,), uppers, lowers) & (size > 1)
        return bad

    def _holds_any(self, nodes: tuple[int, ...], uppers: Ints, lowers: slice) -> Bools:
        chosen = np.zeros(self.inst.num_nodes, bool)
        chosen[list(nodes)] = True
        return self.holds(chosen, uppers, lowers)

    def holds(self, chosen: Bools, uppers: Ints, lowers: slice) -> Bools:
        """Return which stages hold a chosen node."""
        result: Bools = self.difference(chosen.astype(float), uppers, lowers) > 0.5
        return result
