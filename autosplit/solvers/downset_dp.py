"""The exact solver for most problems: dynamic program over all downsets of narrow windows.

Relaxed views of the problem come first, since they are small: budgets dropped and nodes
contracted, then nodes contracted with care for budgets, then the problem as it is. Each view
gives a proven bound, and its plan, where it breaks no rule of the problem, is the optimum.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from typing import NamedTuple

from autosplit.solvers.base import SOLVERS, ChainProblem, Solution, Status
from autosplit.solvers.bounds import (
    GRACE_S,
    GROWTH,
    any_plan,
    best_of_orders,
    loosest_load,
    simple_bound,
    step_bound,
)
from autosplit.solvers.chain_dp import ChainPlan, ChainSearch
from autosplit.solvers.contract import Contraction, contract
from autosplit.solvers.cuts import TooManyError
from autosplit.solvers.downsets import AllCuts
from autosplit.solvers.evaluate import Evaluation, evaluate
from autosplit.solvers.instance import Instance
from autosplit.solvers.recompute import cheapest_recomputation, recompute_all

EXACT = 1e-9
"""Relative difference below which two objectives are one."""


NARROW = 2e-3
"""Relative distance between bound and plan at which a bound is good enough."""


class InfeasibleViewError(Exception):
    """A relaxation has no plan, hence neither has the problem."""


class _Open(NamedTuple):
    """A view that was not decided, and a load that some plan of it has."""

    view: Contraction
    inst: Instance
    memory: bool
    known: float


@SOLVERS.register("dp")
class DownsetDP:
    """Windowed dynamic program over downsets (numpy); needs no other library."""

    @classmethod
    def is_available(cls) -> bool:
        """Return True: numpy is always there."""
        return True

    def solve(
        self,
        problem: ChainProblem,
        *,
        time_limit_s: float,
        gap: float = 0.0,
        incumbent: Solution | None = None,
    ) -> Solution:
        """Answer ``problem``; "feasible" or "unknown" where a window overflows its limit."""
        return _Run(problem, time_limit_s, gap, incumbent).solve()


class _Run:
    """One call of the solver: the best plan and the best bound so far."""

    def __init__(
        self, problem: ChainProblem, time_limit_s: float, gap: float, incumbent: Solution | None
    ) -> None:
        self.problem, self.gap = problem, gap
        self.started = time.monotonic()
        self.deadline = self.started + time_limit_s
        self.grace_s = min(GRACE_S, time_limit_s)
        self.inst = Instance(problem)
        self.best: Solution | None = incumbent if incumbent and incumbent.stage_of else None
        self.bound = simple_bound(self.inst)
        self.notes: list[str] = []
        self.open: list[_Open] = []
        self.overflowed = False

    def solve(self) -> Solution:
        """Return the answer after as many views as it takes."""
        for view, memory in self._views():
            if memory and self.problem.recompute_bytes:
                self._offer_recomputed()
                self.notes.append("dp: what to recompute is left to the ILP")
                break
            try:
                self._search(view, memory)
            except TooManyError:
                self.overflowed = True
            except InfeasibleViewError:
                return self._answer("infeasible")
            if self._proven():
                return self._answer("optimal")
        if self.overflowed:
            self._offer_any()
            self._narrow()
            if not self._proven():
                self.notes.append("dp: a window holds too many downsets, or the time is up")
        return self._answer("feasible" if self.best else "unknown")

    def _views(self) -> Iterator[tuple[Contraction, bool]]:
        """Yield relaxations of the problem, the last one the problem itself."""
        memory = self.inst.memory_may_bind
        blind = contract(self.problem, memory=False)
        yield blind, False
        if memory:
            # Its windows are narrower where budgets bind, so that it may fit where none did.
            yield contract(self.problem, memory=True), True
        if not self.problem.allow_empty and not self.overflowed:
            yield Contraction(self.problem, tuple(range(self.problem.num_nodes))), memory

    def _search(self, view: Contraction, memory: bool) -> None:
        """Solve one view to optimality and note what it says about the problem."""
        inst = Instance(view.problem)
        self._learn(self._bound_of(inst.lower_bound()))
        bottleneck = self._least_load(view, inst, memory)
        if self.problem.objective == "bottleneck":
            self._learn(bottleneck.label)
            self._offer(view, bottleneck)
        elif not self._proven():
            self._learn(self._least_step(view, inst, memory, bottleneck))

    def _least_load(self, view: Contraction, inst: Instance, memory: bool) -> ChainPlan:
        """Return a plan of the view with the least largest load."""
        plan = best_of_orders(inst, memory=memory, deadline=self.deadline)
        known = math.inf
        if self.best is not None and self.problem.objective == "bottleneck":
            known = self.best.objective_s
        if plan is not None:
            self._offer(view, plan)
            known = min(known, plan.label)
            if plan.label <= inst.lower_bound() * (1 + EXACT):
                return plan
        try:
            found = self._decide(inst, memory, known)
        except TooManyError:
            self.open.append(_Open(view, inst, memory, known))
            raise
        if found is None:
            found = plan
        if found is None:
            raise InfeasibleViewError
        return found

    def _decide(self, inst: Instance, memory: bool, known: float) -> ChainPlan | None:
        """Return a plan with the least largest load, at most ``known``; None if there is none.

        With a good plan known, one search below its value decides. Where none is known, T climbs
        from the lower bound; every T without a plan is a better bound.
        """
        if known < math.inf:
            return self._chain(inst, memory, most=known * (1 + EXACT)).run()
        low, high = inst.lower_bound(), loosest_load(inst)
        for most in [low * factor for factor in GROWTH if low * factor < high] + [high]:
            found = self._chain(inst, memory, most=most * (1 + EXACT)).run()
            if found is not None:
                return found
            self._learn(self._bound_of(most))
        return None

    def _narrow(self) -> None:
        """Raise the bound by searches at lower T, which fit, where those at the best plan do not.

        A search without a plan proves that T is a bound; one with a plan, that it is the best.
        """
        for view, inst, memory, high in self.open:
            low = inst.lower_bound()
            if self.problem.objective == "bottleneck":
                low = max(low, self.bound)
            overflows = 0
            while not self._proven() and high - low > NARROW * high and overflows < 3:
                most = low + 0.75 / (1 + overflows) * (high - low)
                try:
                    found = self._chain(inst, memory, most=most).run()
                except TooManyError:
                    high, overflows = most, overflows + 1
                    if time.monotonic() > self.deadline:
                        return
                    continue
                if found is not None:
                    self._learn(self._bound_of(found.label))
                    self._offer(view, found)
                    break
                low = most
                self._learn(self._bound_of(low))

    def _bound_of(self, load: float) -> float:
        """Return what a bound of the largest load says of the objective."""
        if self.problem.objective == "bottleneck":
            return load
        rest = step_bound(self.inst) - (self.problem.microbatches - 1) * self.inst.lower_bound()
        return (self.problem.microbatches - 1) * load + rest

    def _chain(self, inst: Instance, memory: bool, **options: float) -> ChainSearch:
        source = AllCuts(inst, deadline=self.deadline)
        total = "total_most" in options
        return ChainSearch(
            inst, source, memory=memory, total=total, deadline=self.deadline, **options
        )

    def _least_step(
        self, view: Contraction, inst: Instance, memory: bool, bottleneck: ChainPlan
    ) -> float:
        """Return the least ``(M - 1) * largest + sum`` over the plans of the view.

        The least sum of loads under a cut-off T only grows as T falls. So the search starts at
        the largest T that could pay off and lowers it below every largest load it meets.
        """
        repeats = self.problem.microbatches - 1
        low = bottleneck.label
        first = self._chain(inst, memory, most=low * (1 + EXACT), total_most=math.inf).run()
        assert first is not None, "the least largest load has a plan"
        self._offer(view, first)
        best = repeats * low + first.label
        least_sum = step_bound(inst) - repeats * inst.lower_bound()
        most = loosest_load(inst)
        if repeats:
            most = min(most, low + (first.label - least_sum) / repeats)
        while most > low * (1 + 1e-7):
            plan = self._chain(inst, memory, most=most, total_most=first.label).run()
            if plan is None:
                break
            largest = max(self._evaluate(view, plan).loads_s)
            self._offer(view, plan)
            best = min(best, repeats * largest + plan.label)
            most = largest * (1 - 1e-7)
            if repeats:
                most = min(most, (best - plan.label) / repeats * (1 - 1e-7))
        return best * (1 - EXACT)

    # ------------------------------------------------------------ plans and bounds

    def _evaluate(self, view: Contraction, plan: ChainPlan) -> Evaluation:
        kinds = plan.kind_of if self.problem.kinds else ()
        return evaluate(self.problem, view.lift(plan.stage_of), kinds)

    def _learn(self, bound: float) -> None:
        self.bound = max(self.bound, bound)

    def _offer(self, view: Contraction, plan: ChainPlan) -> None:
        """Keep the plan if it is valid for the problem and better than the best."""
        stage_of = view.lift(plan.stage_of)
        kinds = plan.kind_of if self.problem.kinds else ()
        chosen = cheapest_recomputation(self.problem, stage_of, kinds)
        result = evaluate(self.problem, stage_of, kinds, chosen)
        if result.violations:
            return
        if self.best is None or result.objective_s < self.best.objective_s:
            self.best = Solution(
                stage_of=stage_of,
                objective_s=result.objective_s,
                bound_s=0.0,
                status="feasible",
                solver="dp",
                solver_s=0.0,
                kind_of=kinds,
                recompute=chosen,
            )

    def _offer_any(self) -> None:
        """Find some plan where there is none yet: coarse and quick, in as much time again."""
        whole = Contraction(self.problem, tuple(range(self.problem.num_nodes)))
        if self.best is None:
            plan = any_plan(self.inst, self.grace_s)
            if plan is not None:
                self._offer(whole, plan)

    def _offer_recomputed(self) -> None:
        """Offer the best plans over orders that recompute nothing, and that may everything."""
        whole = Contraction(self.problem, tuple(range(self.problem.num_nodes)))
        for inst in (self.inst, Instance(recompute_all(self.problem))):
            plan = best_of_orders(inst, deadline=self.deadline)
            if plan is not None:
                self._offer(whole, plan)

    def _proven(self) -> bool:
        if self.best is None:
            return False
        return self.best.objective_s * (1 - max(EXACT * 10, self.gap)) <= self.bound

    def _answer(self, status: Status) -> Solution:
        seconds = time.monotonic() - self.started
        if self.best is None:
            bound = math.inf if status == "infeasible" else self.bound
            return Solution(None, math.inf, bound, status, "dp", seconds, tuple(self.notes))
        value = self.best.objective_s
        exact = value * (1 - EXACT * 10) <= self.bound
        return dataclasses.replace(
            self.best,
            bound_s=value if exact else min(self.bound, value),
            status="optimal" if exact else "feasible",
            solver="dp",
            solver_s=seconds,
            notes=tuple(self.notes),
        )
