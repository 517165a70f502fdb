"""Baselines: valid plans by their own rules, never better than the planner's."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import baselines, graph, planner
from autosplit.baselines import BASELINES
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile


def model(measured, stages, **request):
    return planner.cost_model(graph.build(measured), PlanRequest(stages, 8, **request))


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.integers(1, 4))
def test_balanced_is_the_best_row_of_pieces(weights, stages):
    stages = min(stages, len(weights))
    found = baselines.balanced(weights, stages)
    assert sorted(set(found)) == list(range(stages))
    assert list(found) == sorted(found)

    def heaviest(cuts):
        return max(sum(weights[a:b]) for a, b in itertools.pairwise([0, *cuts, len(weights)]))

    best = min(map(heaviest, itertools.combinations(range(1, len(weights)), stages - 1)))
    assert heaviest([found.index(stage) for stage in range(1, stages)]) == best


def test_each_rule_balances_its_own_quantity():
    measured = profile([1.0] * 4 + [4.0], param_bytes=[90, 10, 10, 10, 60])
    counted = dataclasses.replace(
        measured,
        layers=tuple(
            dataclasses.replace(layer, flops=count)
            for layer, count in zip(measured.layers, (1, 1, 9, 1, 1), strict=True)
        ),
    )
    asked = model(counted, 2)
    assert BASELINES["uniform"](asked) in ((0, 0, 0, 1, 1), (0, 0, 1, 1, 1))
    assert BASELINES["parameters"](asked) == (0, 1, 1, 1, 1)
    assert BASELINES["time"](asked) == (0, 0, 0, 0, 1)
    assert BASELINES["flops"](asked) in ((0, 0, 0, 1, 1), (0, 0, 1, 1, 1))
    assert BASELINES["flops"](model(measured, 2)) is None


def test_memory_fills_one_device_after_the_other():
    measured = profile([1.0] * 6, param_bytes=[100] * 6)
    asked = model(measured, 3, optimizer="sgd", memory_bytes=650)
    assert BASELINES["memory"](asked) == (0, 0, 1, 1, 2, 2)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 10**6), st.integers(4, 14), st.integers(1, 4))
def test_no_baseline_beats_the_plan(seed, count, stages):
    measured = random_profile(seed, count, memory=True)
    request = PlanRequest(stages, 8, link_bytes_per_s=5.0)
    found = planner.plan(measured, request)
    asked = planner.cost_model(graph.build(measured), request)
    rows = baselines.compare(asked)
    assert {row.name for row in rows} == set(BASELINES) - {"flops"}
    for row in rows:
        assert row.fits
        assert row.step_s >= found.step_s * (1 - 1e-9)
        objective = asked.evaluate(BASELINES[row.name](asked)).objective_s
        assert objective >= found.bound_s * (1 - 1e-9)


def test_what_does_not_fit_is_said():
    measured = profile([1.0, 1.0, 1.0, 1.0], param_bytes=[10, 10, 10, 400])
    rows = {
        row.name: row
        for row in baselines.compare(model(measured, 2, optimizer="sgd", memory_bytes=820))
    }
    assert not rows["uniform"].fits
    assert rows["uniform"].memory_bytes == pytest.approx(820, abs=20)
    assert rows["parameters"].fits
