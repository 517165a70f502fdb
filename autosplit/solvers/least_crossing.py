"""Among plans whose loads are within those of a known one, the one with the cheapest boundaries.

Prices of nets have nothing to do with time: they say which of the plans of equal worth a person
would choose. The dynamic program is that of the loads with other labels, exact over all downsets
of its windows; where these are too many, it takes the best of a few topological orders, one of
which holds the known plan.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from autosplit.solvers.base import ChainProblem, DeviceKind, Solution
from autosplit.solvers.chain_dp import ChainPlan, ChainSearch, Key, Move, State
from autosplit.solvers.cuts import CutSource, TooManyError
from autosplit.solvers.downsets import AllCuts
from autosplit.solvers.evaluate import Evaluation, evaluate
from autosplit.solvers.instance import Floats, Instance, Ints
from autosplit.solvers.orders import PrefixCuts, topological_orders
from autosplit.solvers.pairs import Pairs

_NODES = 2_000
"""Nodes up to which all downsets are looked at; the closures of larger graphs take too long."""

_CUTS, _STEPS = 2_000, 50_000
"""Most downsets of a boundary, and most steps to list them."""

_ORDERS = 3
_EQUAL = 1e-9
"""Relative difference of loads, and of objectives, that counts as none."""

_SHARE = 1e-10
"""Share of the sum of loads that all prices make up where the sum is minimised first."""


def least_crossing(
    problem: ChainProblem, known: Solution, prices: Sequence[float], time_limit_s: float
) -> Solution | None:
    """Return a plan as good as a known one with a lower price, or None where none is found.

    Every load is at most the largest of the known plan; with objective "step" the sum of loads is
    at most the known one too. What is recomputed stays as it is.

    Parameters
    ----------
    problem
        What the plan is for.
    known
        The plan, the best by the objective of the problem.
    prices
        What each net costs at every boundary that it crosses.
    time_limit_s
        Seconds after which the search gives up.
    """
    assert known.stage_of is not None
    deadline = time.monotonic() + time_limit_s
    before = evaluate(problem, known.stage_of, known.kind_of, known.recompute)
    best, least = None, price(problem, known.stage_of, prices)
    settled = _recomputed(problem, known.recompute)
    inst = Instance(settled)
    for source in _sources(inst, known.stage_of, deadline):
        plan = _cheapest(inst, source, before, prices, deadline)
        if plan is not None and (found := price(problem, plan.stage_of, prices)) < least:
            kinds = plan.kind_of if problem.kinds else ()
            best, least = replace(known, stage_of=plan.stage_of, kind_of=kinds), found
        if isinstance(source, AllCuts) and plan is not None:
            break
    return best


def price(problem: ChainProblem, stage_of: Sequence[int], prices: Sequence[float]) -> float:
    """Return what a plan costs by the prices of nets at the boundaries that they cross."""
    total = 0.0
    for net, each in zip(problem.nets, prices, strict=True):
        stages = [stage_of[pin] for pin in net.pins]
        last = problem.num_stages - 1 if net.to_end else max(stages)
        total += each * (last - min(stages))
    return total


def _cheapest(
    inst: Instance,
    source: CutSource,
    known: Evaluation,
    prices: Sequence[float],
    deadline: float,
) -> ChainPlan | None:
    """Return the cheapest plan over some boundaries that is as good as the known one.

    Mostly the sum of loads falls with what crosses; where it does not, it has to be minimised.
    """
    for sums in (False, True) if inst.problem.objective == "step" else (False,):
        try:
            plan = _Search(inst, source, known, prices, sums, deadline).run()
        except TooManyError:
            return None
        if plan is not None and _as_good(inst.problem, plan, known):
            return plan
    return None


def _as_good(problem: ChainProblem, plan: ChainPlan, known: Evaluation) -> bool:
    found = evaluate(problem, plan.stage_of, plan.kind_of if problem.kinds else ())
    return not found.violations and found.objective_s <= known.objective_s * (1 + _EQUAL)


def _sources(inst: Instance, stage_of: Sequence[int], deadline: float) -> Iterator[CutSource]:
    if inst.num_nodes <= _NODES:
        yield AllCuts(inst, _CUTS, _STEPS, deadline)
    yield PrefixCuts(inst, sorted(range(inst.num_nodes), key=lambda node: (stage_of[node], node)))
    if inst.num_nodes <= _NODES:
        yield from (PrefixCuts(inst, order) for order in topological_orders(inst, _ORDERS))


def _recomputed(problem: ChainProblem, nodes: Sequence[int]) -> ChainProblem:
    """Return the problem in which these nodes are recomputed, and no others can be."""
    if not problem.recompute_s:
        return problem
    chosen = set(nodes)
    again = [seconds if node in chosen else 0.0 for node, seconds in enumerate(problem.recompute_s)]
    spared = [
        nbytes if node in chosen else 0.0 for node, nbytes in enumerate(problem.recompute_bytes)
    ]

    def slower(kind: DeviceKind) -> DeviceKind:
        pairs = zip(kind.work_s, again, strict=bool(kind.work_s))
        return replace(kind, work_s=tuple(work + more / kind.speed for work, more in pairs))

    return replace(
        problem,
        work_s=tuple(map(float.__add__, map(float, problem.work_s), again)),
        kinds=tuple(slower(kind) if kind.work_s else kind for kind in problem.kinds),
        saved_bytes=tuple(map(float.__sub__, map(float, problem.saved_bytes), spared)),
        recompute_s=(),
        recompute_bytes=(),
    )


class _Search(ChainSearch):
    """The dynamic program whose labels are prices of boundaries, loads kept within those known."""

    def __init__(
        self,
        inst: Instance,
        source: CutSource,
        known: Evaluation,
        prices: Sequence[float],
        sums: bool,
        deadline: float,
    ) -> None:
        super().__init__(inst, source, max(known.loads_s) * (1 + _EQUAL), deadline=deadline)
        self.prices = np.array([prices], float)
        self.sums = sums
        whole = float(self.prices.sum()) * inst.num_stages
        self.unit = _SHARE * sum(known.loads_s) / whole if sums and whole else 1.0

    def _advance(
        self, pairs: Pairs, states: dict[Key, State], moves: list[Move]
    ) -> dict[Key, State]:
        self.at_upper = self.unit * pairs.upper.over_boundary(self.prices)
        return super()._advance(pairs, states, moves)

    def _values(self, pairs: Pairs, rows: Ints, loads: Floats, labels: Floats) -> Floats:
        value = np.where(np.isfinite(loads), labels[None, :], np.inf)
        if self.sums:
            value += loads
        if not self._last(pairs):
            value += self.at_upper[rows]
        result: Floats = value
        return result
