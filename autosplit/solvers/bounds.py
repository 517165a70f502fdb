"""A good plan and a simple bound, quickly: exact dynamic programs over topological orders.

On one order a stage is an interval, so the best plan is found exactly in little time; over a
dozen orders of different temper it is nearly always the best of all. Its value is the cut-off T
with which the exact solvers start.
"""

from __future__ import annotations

import time

import numpy as np

from autosplit.solvers.chain_dp import ChainPlan, ChainSearch
from autosplit.solvers.cuts import TooManyError
from autosplit.solvers.instance import Instance
from autosplit.solvers.orders import PrefixCuts, topological_orders

GROWTH = (1.003, 1.02, 1.08, 1.25, 1.6, 2.2, 3.5, 6.0, 12.0, 40.0)
"""Multiples of the lower bound that are tried as T until an order has a plan."""


GRACE_S = 2.0
"""Seconds beyond a time limit that may go into finding any plan at all."""


def best_of_orders(
    inst: Instance,
    *,
    count: int = 12,
    most: float = float("inf"),
    memory: bool = True,
    deadline: float = float("inf"),
    lower: float | None = None,
    width: int = 1500,
) -> ChainPlan | None:
    """Return the best plan (by largest load) over several topological orders.

    Parameters
    ----------
    inst
        The problem.
    count
        How many orders to try.
    most
        Only plans whose largest load is below this are of interest.
    memory
        Whether budgets bind.
    deadline
        Value of ``time.monotonic`` after which no further order is started.
    lower
        A bound of the largest load; a plan that meets it ends the search.
    width
        Most prefixes of an order that are candidates for one boundary.
    """
    lower = inst.lower_bound() if lower is None else lower
    best: ChainPlan | None = None
    for order in topological_orders(inst, count):
        source = PrefixCuts(inst, order, width)
        for limit in _limits(inst, lower, most):
            try:
                plan = ChainSearch(inst, source, limit, memory=memory, deadline=deadline).run()
            except TooManyError:
                return best
            if plan is not None:
                if best is None or plan.label < best.label:
                    best = plan
                most = min(most, plan.label)
                break
        if most <= lower * (1 + 1e-9) or time.monotonic() > deadline:
            break
    return best


def _limits(inst: Instance, lower: float, most: float) -> list[float]:
    """Return the values of T to try on one order, ending with the loosest of interest."""
    worst = loosest_load(inst)
    loosest = min(most, worst)
    if most < worst:
        return [most]
    return [lower * factor for factor in GROWTH if lower * factor < loosest] + [loosest]


def any_plan(inst: Instance, seconds: float = GRACE_S) -> ChainPlan | None:
    """Return some plan, coarse but quick, for when the time is up without one."""
    return best_of_orders(inst, count=3, width=200, deadline=time.monotonic() + seconds)


def loosest_load(inst: Instance) -> float:
    """Return a load that no stage exceeds: all work, all recomputed, and every net twice."""
    again = inst.recompute_s.sum() / min(kind.speed for kind in inst.kinds)
    nets = 2 * inst.net_cost.max(axis=0).sum() if inst.num_nets else 0.0
    return float(inst.work.max(axis=0).sum() + inst.entry.max() + again + nets)


def simple_bound(inst: Instance) -> float:
    """Return a bound of the objective that needs no search."""
    return step_bound(inst) if inst.problem.objective == "step" else inst.lower_bound()


def step_bound(inst: Instance) -> float:
    """Return a simple bound of the step objective: least total work after the first load."""
    allowed = np.where(inst.excluded, np.inf, inst.work)
    total = float(allowed.min(axis=0).sum())
    if not inst.problem.allow_empty:
        total += float(np.array(inst.counts) @ inst.entry)
    return (inst.problem.microbatches - 1) * inst.lower_bound() + total
