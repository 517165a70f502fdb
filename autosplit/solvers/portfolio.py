"""Answer a chain problem with the means at hand: bounds first, then exact solvers in turn."""

from __future__ import annotations

import time

from autosplit.solvers.base import ChainProblem, Solution
from autosplit.solvers.bounds import best_of_orders
from autosplit.solvers.chain_dp import ChainPlan
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.instance import Instance


def solution_of(
    problem: ChainProblem, plan: ChainPlan, bound_s: float, solver: str, started: float
) -> Solution:
    """Return a plan as a solution whose objective is recomputed from the problem."""
    kinds = plan.kind_of if problem.kinds else ()
    value = evaluate(problem, plan.stage_of, kinds).objective_s
    bound_s = min(bound_s, value)
    return Solution(
        stage_of=plan.stage_of,
        objective_s=value,
        bound_s=bound_s,
        status="optimal" if bound_s >= value * (1 - 1e-9) else "feasible",
        solver=solver,
        solver_s=time.monotonic() - started,
        kind_of=kinds,
    )


def solve(
    problem: ChainProblem,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    cross_check: bool = False,
) -> Solution:
    """Answer a chain problem."""
    started = time.monotonic()
    inst = Instance(problem)
    plan = best_of_orders(inst, deadline=started + time_limit_s)
    bound = inst.lower_bound()
    if problem.objective == "step":
        bound *= problem.microbatches
    if plan is None:
        return Solution(None, float("inf"), bound, "unknown", "bounds", time.monotonic() - started)
    return solution_of(problem, plan, bound, "bounds", started)
