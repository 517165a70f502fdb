"""What every registered solver promises."""

from __future__ import annotations

from typing import Any

import pytest

from autosplit.solvers import SOLVERS
from autosplit.solvers.base import ChainProblem, Link, Net, Solution
from autosplit.solvers.evaluate import evaluate

CHAIN = ChainProblem(
    num_stages=2,
    work_s=(3.0, 1.0, 2.0, 2.0),
    edges=((0, 1), (1, 2), (2, 3)),
    nets=(Net((0, 1), 4.0), Net((1, 2), 1.0), Net((2, 3), 2.0)),
    links=(Link(0.5),),
)


@pytest.fixture(params=SOLVERS.names())
def solver(request: pytest.FixtureRequest) -> Any:
    entry = SOLVERS[request.param]
    if not entry.is_available():
        pytest.skip(f"{request.param} is not installed")
    return entry()


def test_optimum_is_proven_and_recomputed(solver: Any) -> None:
    answer = solver.solve(CHAIN, time_limit_s=20)
    assert answer.status == "optimal"
    assert answer.stage_of == (0, 0, 1, 1)
    assert answer.objective_s == evaluate(CHAIN, answer.stage_of).objective_s == 4.5
    assert answer.bound_s == answer.objective_s
    assert answer.solver_s >= 0


def test_infeasible_is_proven(solver: Any) -> None:
    problem = ChainProblem(2, (1.0, 1.0), (), static_bytes=(5.0, 5.0), budget_bytes=(5.0, 4.0))
    answer = solver.solve(problem, time_limit_s=20)
    assert (answer.status, answer.stage_of) == ("infeasible", None)


def test_incumbent_is_kept_or_beaten(solver: Any) -> None:
    known = Solution((0, 1, 1, 1), 7.0, 0.0, "feasible", "hand", 0.0)
    answer = solver.solve(CHAIN, time_limit_s=20, incumbent=known)
    assert answer.objective_s == 4.5
    best = Solution((0, 0, 1, 1), 4.5, 0.0, "feasible", "hand", 0.0)
    answer = solver.solve(CHAIN, time_limit_s=20, incumbent=best)
    assert (answer.status, answer.objective_s) == ("optimal", 4.5)


def test_fixed_nodes_stay(solver: Any) -> None:
    problem = ChainProblem(
        CHAIN.num_stages, CHAIN.work_s, CHAIN.edges, CHAIN.nets, links=CHAIN.links, fixed=((1, 1),)
    )
    answer = solver.solve(problem, time_limit_s=20)
    assert answer.stage_of == (0, 1, 1, 1)
    assert answer.status == "optimal"
