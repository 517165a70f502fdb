"""Answer a chain problem with the means at hand: the dynamic program first, then the ILP."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

from autosplit.errors import AutosplitError
from autosplit.solvers.base import SOLVERS, ChainProblem, Solution
from autosplit.solvers.bounds import GRACE_S, any_plan, best_of_orders, simple_bound
from autosplit.solvers.chain_dp import ChainPlan
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.instance import Instance
from autosplit.solvers.recompute import cheapest_recomputation

AGREE = 1e-6
"""Relative difference up to which two proven objectives agree."""

DP_SHARE = 0.4
"""Part of the time limit that the dynamic program may use before the ILP takes over."""

MIXED_SHARE = 0.8
"""The same where devices of several kinds may stand in any order: an ILP proves little there."""

_COARSE = 64
"""Candidates for each boundary where any plan will do."""


def solve(
    problem: ChainProblem,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    cross_check: bool = False,
    start: Sequence[int] | None = None,
    persist: bool = True,
) -> Solution:
    """Answer a chain problem.

    Parameters
    ----------
    problem
        The problem.
    solver
        Name in ``SOLVERS``, or "auto": the dynamic program, and the ILP where a window of it
        overflows.
    time_limit_s
        Seconds after which the best plan so far is returned with its bound.
    gap
        Relative distance between plan and bound that is good enough.
    cross_check
        Whether to solve twice, by dynamic program and by ILP.
    start
        Stages of the nodes in a known plan: the search looks for better ones only. Ignored where
        that plan breaks a rule, or the order of devices is free.
    persist
        Whether to take a little longer for a first plan where the time brought none.

    Returns
    -------
    Solution
        With status "optimal" only where proven; a solver that fails is named in the notes.

    Raises
    ------
    AutosplitError
        If a cross-check finds two different optima.
    UsageError
        If there is no solver of that name.
    """
    started = time.monotonic()
    if solver != "auto":
        SOLVERS[solver]  # refuses an unknown name before any work
    known = _known(problem, start)
    if time_limit_s <= 0:
        answer = known or _as_solution(Instance(problem), None)
    elif cross_check:
        answer = _cross_check(problem, time_limit_s, gap)
    elif solver in ("auto", "dp"):
        share = MIXED_SHARE if len(problem.kinds) > 1 else DP_SHARE
        share = share if solver == "auto" else 1.0
        answer = _attempt("dp", problem, time_limit_s * share, gap, known)
        left = time_limit_s - (time.monotonic() - started)
        if solver == "auto" and not _done(answer, gap) and left > 0:
            answer = _better(answer, _attempt("ilp", problem, left, gap, answer))
    else:
        first = _incumbent(problem, time_limit_s / 4)
        if known is not None and known.objective_s < first.objective_s:
            first = known
        left = time_limit_s - (time.monotonic() - started)
        answer = _better(first, _attempt(solver, problem, left, gap, first))
    if persist and answer.status == "unknown":
        answer = _better(answer, _any(Instance(problem)))
    return dataclasses.replace(answer, solver_s=time.monotonic() - started)


def _known(problem: ChainProblem, start: Sequence[int] | None) -> Solution | None:
    """Return a known plan as a solution, if it is valid."""
    if start is None or problem.kinds:
        return None
    again = cheapest_recomputation(problem, start)
    result = evaluate(problem, start, (), again)
    if result.violations:
        return None
    value = result.objective_s
    bound = min(value, simple_bound(Instance(problem)))
    return Solution(tuple(start), value, bound, "feasible", "given", 0.0, recompute=again)


def _incumbent(problem: ChainProblem, seconds: float) -> Solution:
    """Return the best plan over a few topological orders."""
    inst = Instance(problem)
    plan = best_of_orders(inst, deadline=time.monotonic() + seconds)
    return _as_solution(inst, plan or any_plan(inst, min(seconds, GRACE_S)))


def _any(inst: Instance) -> Solution:
    """Return a plan where the time is up without one: after little work, whatever the clock."""
    return _as_solution(inst, best_of_orders(inst, count=1, width=_COARSE) or any_plan(inst))


def _as_solution(inst: Instance, plan: ChainPlan | None) -> Solution:
    bound = simple_bound(inst)
    if plan is None:
        return Solution(None, float("inf"), bound, "unknown", "bounds", 0.0)
    kinds = plan.kind_of if inst.problem.kinds else ()
    value = evaluate(inst.problem, plan.stage_of, kinds).objective_s
    bound = min(bound, value)
    return Solution(plan.stage_of, value, bound, "feasible", "bounds", 0.0, kind_of=kinds)


def _attempt(
    name: str, problem: ChainProblem, time_limit_s: float, gap: float, incumbent: Solution | None
) -> Solution:
    """Ask one solver; where it fails, return the incumbent and say so."""
    try:
        return SOLVERS[name]().solve(
            problem, time_limit_s=time_limit_s, gap=gap, incumbent=incumbent
        )
    except AutosplitError as error:
        reason = error.message + (f" ({error.cause})" if error.cause else "")
        if incumbent is None:
            return Solution(None, float("inf"), 0.0, "unknown", name, 0.0, (reason,))
        return dataclasses.replace(incumbent, notes=(*incumbent.notes, reason))


def _done(answer: Solution, gap: float) -> bool:
    if answer.status in ("optimal", "infeasible"):
        return True
    return answer.stage_of is not None and answer.gap <= gap


def _better(first: Solution, second: Solution) -> Solution:
    """Return the better plan of two answers with the better bound."""
    notes = tuple(dict.fromkeys((*first.notes, *second.notes)))
    if second.status in ("optimal", "infeasible") or first.stage_of is None:
        best = second
    else:
        best = first if first.objective_s < second.objective_s else second
    bound = min(max(first.bound_s, second.bound_s), best.objective_s)
    status = best.status
    if best.stage_of is not None:
        status = "optimal" if bound >= best.objective_s * (1 - 1e-8) else "feasible"
    return dataclasses.replace(
        best, bound_s=bound, status=status, solver=second.solver, notes=notes
    )


def _cross_check(problem: ChainProblem, time_limit_s: float, gap: float) -> Solution:
    known = _incumbent(problem, time_limit_s / 4)
    first = _attempt("dp", problem, time_limit_s / 3, gap, None)
    second = _attempt("ilp", problem, time_limit_s / 3, gap, known)
    proven = {first.status, second.status} <= {"optimal", "infeasible"}
    if not proven:
        note = "cross-check: not both solvers finished in time"
        answer = _better(first, second)
        return dataclasses.replace(answer, notes=(*answer.notes, note))
    plans = first.stage_of is not None and second.stage_of is not None
    differ = abs(first.objective_s - second.objective_s) > AGREE * abs(first.objective_s)
    if first.status != second.status or (plans and differ):
        raise AutosplitError(
            f"solvers disagree: dp {first.objective_s:.9g}, "
            f"{second.solver} {second.objective_s:.9g} seconds",
            cause="one of them has a fault",
            hint="please report this with the profile",
        )
    note = f"cross-check: dp and {second.solver} agree"
    return dataclasses.replace(first, notes=(*first.notes, note))
