"""The dynamic program against every plan of small random graphs."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit.solvers import downset_dp
from autosplit.solvers.base import ChainProblem, Link, Net
from autosplit.solvers.downset_dp import DownsetDP
from autosplit.solvers.downsets import AllCuts
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.instance import Instance

from .problems import brute_force, problems


def check(problem: ChainProblem) -> None:
    expected = brute_force(problem)
    answer = DownsetDP().solve(problem, time_limit_s=60)
    if math.isinf(expected):
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal"
    assert answer.stage_of is not None
    assert answer.objective_s == pytest.approx(expected, rel=1e-7, abs=1e-9)
    result = evaluate(problem, answer.stage_of, answer.kind_of, answer.recompute)
    assert not result.violations
    assert answer.bound_s <= answer.objective_s == result.objective_s


@settings(max_examples=150, deadline=None)
@given(problems(memory=False))
def test_equals_brute_force_without_budgets(problem: ChainProblem) -> None:
    check(problem)


@settings(max_examples=150, deadline=None)
@given(problems())
def test_equals_brute_force_with_budgets(problem: ChainProblem) -> None:
    check(problem)


@settings(max_examples=150, deadline=None)
@given(problems(most_nodes=6, kinds=True))
def test_equals_brute_force_over_device_orders(problem: ChainProblem) -> None:
    check(problem)


@settings(max_examples=100, deadline=None)
@given(problems(least_nodes=4, most_nodes=7, kinds=True), st.integers(1, 6))
def test_bounds_hold_where_windows_overflow(problem: ChainProblem, limit: int) -> None:
    expected = brute_force(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downset_dp, "AllCuts", partial(AllCuts, limit=limit))
        answer = DownsetDP().solve(problem, time_limit_s=60)
    assert answer.bound_s <= expected * (1 + 1e-9)
    assert answer.status not in ("optimal", "infeasible") or answer.objective_s <= expected
    if answer.stage_of is not None:
        assert answer.objective_s >= expected * (1 - 1e-9)


def test_searches_below_the_best_plan_raise_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six branches: loads up to the optimum leave too many downsets, smaller ones do not."""
    work = (1.0, *(4.0 + 0.1 * node for node in range(6)), 1.0)
    edges = tuple((0, node) for node in range(1, 7)) + tuple((node, 7) for node in range(1, 7))
    nets = tuple(Net((node, 7), 3.0) for node in range(1, 7))
    problem = ChainProblem(4, work, edges, nets, links=(Link(1.0),) * 3)
    exact = DownsetDP().solve(problem, time_limit_s=60)
    least = Instance(problem).lower_bound()
    assert exact.status == "optimal"
    monkeypatch.setattr(downset_dp, "AllCuts", partial(AllCuts, limit=48))
    answer = DownsetDP().solve(problem, time_limit_s=60)
    assert answer.status == "feasible"
    assert least < answer.bound_s <= exact.objective_s


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(problems(least_nodes=5, most_nodes=8, kinds=True))
def test_equals_brute_force_over_device_orders_at_length(problem: ChainProblem) -> None:
    check(problem)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(problems(least_nodes=5, most_nodes=7, most_stages=4))
def test_equals_brute_force_at_length(problem: ChainProblem) -> None:
    check(problem)
