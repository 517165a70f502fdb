"""Among plans of equal worth: fewer bytes over the cuts, then cuts between modules."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from autosplit import chain, cluster, graph, planner, ties
from autosplit.solvers.base import Solution
from autosplit.types import PlanRequest
from tests.builders import profile


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


# ---------------------------------------------------------------- in every mode


def brute_force(measured, request, found):
    """Return the fewest bytes over the cuts of all plans as good as one, in any device order."""
    layers = graph.build(measured)
    names = [device.name for device in request.cluster.devices] if request.cluster else []
    fewest = math.inf
    for order in itertools.permutations(names):
        model = planner.ordered_model(layers, request, order=order)
        for firsts in itertools.combinations(range(1, len(layers)), request.stages - 1):
            stage_of = [sum(layer >= first for first in firsts) for layer in range(len(layers))]
            cost = model.evaluate(stage_of)
            good = cost.objective_s <= found.objective_s * (1 + 1e-9)
            if good and cost.bottleneck_s <= found.bottleneck_s * (1 + 1e-9):
                fewest = min(fewest, crossing(layers, stage_of))
    return fewest


def crossing(layers, stage_of):
    """Return the bytes over all cuts, forward and backward."""
    total = 0
    for value in layers.values:
        if value.producer is not None:
            stages = [stage_of[layer] for layer in (value.producer, *value.consumers)]
            last = max(stage_of) if value.output else max(stages)
            total += value.nbytes * (1 + value.needs_grad) * (last - min(stages))
    return total


def row(seed, count):
    """A chain of layers of few different times and sizes: many plans are equal."""
    drawn = random.Random(seed)
    sizes = {(i, i + 1): drawn.choice([10, 20, 1000]) for i in range(count - 1)}
    return profile([float(drawn.choice([1, 1, 2, 6])) for _ in range(count)], sizes)


CLUSTERS = {
    "alike": None,
    "mixed": "[[device]]\nkind='a'\nspeed=2\ncount=2\n[[device]]\nkind='b'\n"
    "[links]\ndefault={bandwidth='1kB/s'}\n",
    "linked": "[[device]]\ncount=2\nnode='m'\n[[device]]\nkind='b'\nnode='n'\nspeed=2\n"
    "[links]\nnode={bandwidth='free'}\ndefault={bandwidth='1kB/s', latency='1ms'}\n",
}


@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("objective", ["bottleneck", "step"])
@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), count=st.integers(4, 8))
def test_no_plan_of_equal_worth_has_fewer_bytes(devices, overlap, objective, seed, count):
    measured = row(seed, count)
    text = CLUSTERS[devices]
    request = PlanRequest(
        3,
        4,
        objective=objective,
        overlap=overlap,
        link_bytes_per_s=1e3,
        cluster=cluster.parse(text) if text else None,
    )
    found = planner.plan(measured, request)
    assume(not any("the simulated step" in note for note in found.notes))
    assert found.status == "optimal"
    placed = {name: s for s, stage in enumerate(found.stages) for name in stage.layers}
    layers = graph.build(measured)
    stage_of = [placed[layer.name] for layer in layers.layers]
    assert crossing(layers, stage_of) == brute_force(measured, request, found)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("text", [text for text in CLUSTERS.values() if text])
def test_modules_stay_whole_on_any_devices(overlap, text):
    measured = in_blocks(profile([1.0] * 9 + [40.0]), 3)
    request = PlanRequest(
        3, 8, objective="bottleneck", overlap=overlap, cluster=cluster.parse(text)
    )
    assert cuts(planner.plan(measured, request))[0] % 3 == 0


def test_a_single_stage_has_no_cuts():
    built = graph.build(profile([1.0] * 3))
    model = planner.cost_model(built, PlanRequest(1, 2))
    groups = [(0,), (1,), (2,)]
    problem = chain.problem(model, groups)
    known = Solution((0, 0, 0), 6.0, 6.0, "optimal", "dp", 0.0)
    assert ties.tasteful(problem, known, built, groups, 1.0) is None
