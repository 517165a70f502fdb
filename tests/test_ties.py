"""Among plans of equal worth: fewer bytes over the cuts, then cuts between modules."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import chain, graph, planner, ties
from autosplit.solvers.evaluate import evaluate
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile


def in_blocks(measured, size):
    layers = tuple(
        dataclasses.replace(layer, block=f"h.{index // size}", module=f"h.{index // size}.part")
        for index, layer in enumerate(measured.layers)
    )
    return dataclasses.replace(measured, layers=layers)


def cuts(found):
    return [int(stage.layers[0][1:]) for stage in found.stages[1:]]


@pytest.mark.parametrize("objective", ["step", "bottleneck"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_fewer_bytes_cross(objective, schedule):
    # The heavy layer rules; the others may be cut anywhere.
    sizes = {(i, i + 1): 10 if i == 4 else 1000 for i in range(9)}
    measured = profile([1.0] * 9 + [20.0], sizes)
    found = planner.plan(measured, PlanRequest(3, 8, objective=objective, schedule=schedule))
    assert 5 in cuts(found)
    assert found.status == "optimal"


@pytest.mark.parametrize("objective", ["step", "bottleneck"])
def test_cuts_lie_between_modules(objective):
    measured = in_blocks(profile([1.0] * 9 + [20.0]), 3)
    request = PlanRequest(3, 8, objective=objective, link_bytes_per_s=1e3)
    found = cuts(planner.plan(measured, request))
    assert found[-1] == 9
    assert found[0] % 3 == 0


def test_worth_comes_first():
    measured = in_blocks(profile([1.0] * 8), 3)
    assert cuts(planner.plan(measured, PlanRequest(2, 8))) == [4]


@settings(deadline=None, max_examples=20)
@given(
    st.integers(0, 10**6),
    st.integers(4, 9),
    st.sampled_from(["step", "bottleneck"]),
    st.sampled_from(ties.PRICES),
)
def test_prices_are_small(seed, count, objective, price):
    measured = in_blocks(random_profile(seed, count), 2)
    request = PlanRequest(2, 5, objective=objective)
    found = planner.plan(measured, request)
    model = planner.cost_model(graph.build(measured), request)
    groups = [(layer,) for layer in range(count)]
    problem = chain.problem(model, groups)
    priced = ties.with_taste(problem, model.graph, groups, found.objective_s, price)
    if priced is None:
        assert not any(net.volume for net in problem.nets)
        return
    placed = {name: s for s, stage in enumerate(found.stages) for name in stage.layers}
    stage_of = [placed[layer.name] for layer in model.graph.layers]
    loads = evaluate(priced, stage_of).loads_s
    plain = evaluate(problem, stage_of).loads_s
    for dear, cheap in zip(loads, plain, strict=True):
        assert cheap <= dear <= cheap + 10 * price * found.objective_s


def test_devices_in_free_order_are_left_alone():
    built = graph.build(profile([1.0] * 3))
    model = planner.cost_model(built, PlanRequest(1, 2))
    problem = chain.problem(model, [(0,), (1,), (2,)])
    assert ties.with_taste(problem, built, [(0,), (1,), (2,)], 1.0, 1e-4) is None
