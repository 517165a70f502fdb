"""Answer a chain problem with the means at hand: the dynamic program first, then the ILP."""

from __future__ import annotations

from autosplit.solvers.base import SOLVERS, ChainProblem, Solution
from autosplit.solvers.downset_dp import DownsetDP


def solve(
    problem: ChainProblem,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    cross_check: bool = False,
) -> Solution:
    """Answer a chain problem."""
    chosen = DownsetDP if solver == "auto" else SOLVERS[solver]
    return chosen().solve(problem, time_limit_s=time_limit_s, gap=gap)
