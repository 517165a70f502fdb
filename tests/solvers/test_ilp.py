"""The integer programs against every plan of small random graphs, and their failures."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from autosplit.errors import AutosplitError
from autosplit.solvers import SOLVERS
from autosplit.solvers.base import ChainProblem
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.ilp import Cbc, Highs

from .problems import brute_force, problems

pytest.importorskip("highspy")


def check(problem: ChainProblem, name: str) -> None:
    expected = brute_force(problem)
    answer = SOLVERS[name]().solve(problem, time_limit_s=60)
    if math.isinf(expected):
        assert answer.status == "infeasible"
        return
    assert answer.status == "optimal"
    assert answer.stage_of is not None
    assert answer.objective_s == pytest.approx(expected, rel=1e-6, abs=1e-9)
    result = evaluate(problem, answer.stage_of, answer.kind_of, answer.recompute)
    assert not result.violations
    assert answer.bound_s <= answer.objective_s == result.objective_s


@settings(max_examples=60, deadline=None)
@given(problems(most_nodes=6))
def test_highs_equals_brute_force(problem: ChainProblem) -> None:
    check(problem, "highs")


@settings(max_examples=25, deadline=None)
@given(problems(most_nodes=5, kinds=True))
def test_highs_equals_brute_force_over_device_orders(problem: ChainProblem) -> None:
    check(problem, "highs")


@settings(max_examples=40, deadline=None)
@given(problems(most_nodes=5, most_stages=2, recompute=True))
def test_highs_equals_brute_force_with_recomputation(problem: ChainProblem) -> None:
    check(problem, "highs")


@settings(max_examples=15, deadline=None)
@given(problems(most_nodes=5))
def test_cbc_equals_brute_force(problem: ChainProblem) -> None:
    check(problem, "cbc")


def test_missing_solver_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Highs, "is_available", classmethod(lambda cls: False))
    with pytest.raises(AutosplitError, match="highs is not installed"):
        Highs().solve(ChainProblem(1, (1.0,), ()), time_limit_s=1)


def test_solver_that_dies_is_an_error_with_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise OSError("killed")

    monkeypatch.setattr(Cbc, "run", die)
    problem = ChainProblem(2, (1.0, 1.0, 1.0), ((0, 1), (1, 2)))
    with pytest.raises(AutosplitError, match="cbc failed"):
        Cbc().solve(problem, time_limit_s=1)
