"""The dynamic program against every plan of small random graphs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from autosplit.solvers.base import ChainProblem
from autosplit.solvers.downset_dp import DownsetDP
from autosplit.solvers.evaluate import evaluate

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
