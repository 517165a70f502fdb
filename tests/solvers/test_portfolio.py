"""solve(): the answer does not depend on the way, and no failure of a solver reaches a user."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from autosplit.errors import AutosplitError, UsageError
from autosplit.solvers import SOLVERS, solve
from autosplit.solvers.base import ChainProblem, Link, Net, Solution
from autosplit.solvers.cuts import TooManyError
from autosplit.solvers.downsets import AllCuts
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.ilp import Cbc, Highs

from .problems import brute_force, problems

QUICK = settings(max_examples=60, deadline=None)


def chain(count: int = 8, stages: int = 3, **options: Any) -> ChainProblem:
    edges = tuple((node, node + 1) for node in range(count - 1))
    nets = tuple(Net(edge, 1.0 + edge[0] % 3) for edge in edges)
    links = (Link(0.25),) * (stages - 1)
    work = tuple(1.0 + node % 4 for node in range(count))
    return ChainProblem(stages, work, edges, nets, links=links, **options)


@QUICK
@given(problems(most_nodes=5, recompute=True, most_stages=3))
def test_recomputation_is_chosen_as_by_brute_force(problem: ChainProblem) -> None:
    pytest.importorskip("highspy")
    expected = brute_force(problem)
    answer = solve(problem)
    if math.isinf(expected):
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal"
    assert answer.objective_s == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert answer.stage_of is not None
    result = evaluate(problem, answer.stage_of, answer.kind_of, answer.recompute)
    assert not result.violations


@QUICK
@given(problems())
def test_scaling_all_times_scales_the_value(problem: ChainProblem) -> None:
    first = solve(problem)
    scaled = dataclasses.replace(
        problem,
        work_s=tuple(1e-3 * work for work in problem.work_s),
        entry_s=1e-3 * problem.entry_s,
        links=tuple(Link(1e-3 * x.s_per_byte, 1e-3 * x.latency_s) for x in problem.links),
    )
    second = solve(scaled)
    assert first.status == second.status
    if first.stage_of is not None:
        assert second.objective_s == pytest.approx(1e-3 * first.objective_s, rel=1e-6)


@QUICK
@given(problems())
def test_more_memory_is_never_worse(problem: ChainProblem) -> None:
    first = solve(problem)
    more = tuple(2 * budget for budget in problem.budget_bytes)
    second = solve(dataclasses.replace(problem, budget_bytes=more))
    assert second.objective_s <= first.objective_s * (1 + 1e-9)


@QUICK
@given(problems(memory=False, step=False))
def test_a_further_device_is_never_worse_where_it_may_stay_idle(problem: ChainProblem) -> None:
    few = dataclasses.replace(problem, allow_empty=True, speeds=(), links=(), fixed=())
    more = dataclasses.replace(few, num_stages=few.num_stages + 1, in_flight=(), boundary_factor=())
    assert solve(more).objective_s <= solve(few).objective_s * (1 + 1e-9)


@QUICK
@given(problems())
def test_bound_is_never_above_the_value(problem: ChainProblem) -> None:
    answer = solve(problem, gap=0.3)
    if answer.stage_of is None:
        assert answer.status == "infeasible"
    else:
        assert answer.bound_s <= answer.objective_s
        assert answer.gap <= 0.3
        expected = brute_force(problem)
        assert answer.bound_s <= expected * (1 + 1e-9)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(problems(most_nodes=6))
def test_cross_check_agrees(problem: ChainProblem) -> None:
    pytest.importorskip("highspy")
    answer = solve(problem, cross_check=True)
    assert any("cross-check" in note and "agree" in note for note in answer.notes)


def test_cross_check_raises_where_solvers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Solution((0, 1), 9.0, 9.0, "optimal", "ilp", 0.0)
    monkeypatch.setattr(SOLVERS["ilp"], "solve", lambda *_, **__: wrong)
    with pytest.raises(AutosplitError, match="solvers disagree"):
        solve(chain(), cross_check=True)


def test_unknown_solver_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown solver 'simplex'"):
        solve(chain(), "simplex")


def test_the_same_problem_gets_the_same_plan() -> None:
    assert solve(chain(30, 4)).stage_of == solve(chain(30, 4)).stage_of


# ---------------------------------------------------------------- failures


@pytest.fixture
def overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every window of the dynamic program overflow."""

    def refuse(*_: object) -> None:
        raise TooManyError

    monkeypatch.setattr(AllCuts, "cut", refuse)


@pytest.mark.usefixtures("overflow")
def test_ilp_takes_over_where_a_window_overflows() -> None:
    answer = solve(chain())
    assert (answer.status, answer.gap) == ("optimal", 0.0)
    assert answer.solver in ("cbc", "highs")
    assert any("window" in note for note in answer.notes)


@pytest.mark.usefixtures("overflow")
def test_best_plan_and_its_gap_remain_where_every_solver_dies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(Cbc, "run", die)
    monkeypatch.setattr(Highs, "run", die)
    answer = solve(chain())
    assert answer.status == "feasible"
    assert answer.stage_of is not None
    assert 0 < answer.gap < 1
    assert any("failed" in note and "killed" in note for note in answer.notes)


@pytest.mark.parametrize("name", ["cbc", "highs", "ilp"])
def test_missing_solver_leaves_the_plan_over_orders(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for solver in (Cbc, Highs):
        monkeypatch.setattr(solver, "is_available", classmethod(lambda cls: False))
    answer = solve(chain(), name)
    assert answer.stage_of is not None
    assert answer.status == "feasible"
    assert any("not installed" in note for note in answer.notes)


def test_no_time_still_gives_an_answer() -> None:
    answer = solve(chain(40, 5), time_limit_s=0.0)
    assert answer.status in ("feasible", "optimal")
    assert 0 < answer.bound_s <= answer.objective_s


@pytest.mark.parametrize("solver", ["auto", "dp", "ilp"])
def test_the_search_starts_with_a_known_plan(solver: str) -> None:
    problem = chain(40, 5)
    best = solve(problem)
    answer = solve(problem, solver, time_limit_s=0.0, start=best.stage_of)
    assert answer.objective_s == best.objective_s
    poor = solve(problem, solver, start=(0,) * 36 + (1, 2, 3, 4))
    assert poor.objective_s == pytest.approx(best.objective_s)
    broken = solve(problem, solver, start=(1,) + (0,) * 35 + (1, 2, 3, 4))
    assert broken.objective_s == pytest.approx(best.objective_s)


def test_too_little_memory_is_proven_infeasible() -> None:
    problem = chain(static_bytes=(10.0,) * 8, budget_bytes=(5.0,) * 3)
    assert solve(problem).status == "infeasible"


def test_more_stages_than_nodes_is_infeasible() -> None:
    assert solve(chain(2, 3)).status == "infeasible"
