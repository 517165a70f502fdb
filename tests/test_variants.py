"""Choices among more devices than can all be tried: no proof is claimed that was not made."""

import itertools
import math
import random

import pytest

from autosplit import assign, graph, planner
from autosplit.assign import Failure
from autosplit.devices import Devices
from autosplit.types import Cluster, Device, PlanRequest
from tests.builders import random_profile
from tests.planning import every_plan, plan


def distinct(count, step=0.01):
    speeds = [1 + step * number for number in range(count)]
    random.Random(count).shuffle(speeds)
    return Cluster(tuple(Device(f"d{i}", f"k{i}", f"n{i}", None, s) for i, s in enumerate(speeds)))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1, 1), (2, 3, 1), (4,), (1, 4, 2)])
def test_mixes_come_fastest_first_and_each_once(sizes):
    devices = [
        Device(f"d{kind}-{number}", f"k{kind}", speed=1.0 + (kind * 7 % 5))
        for kind, size in enumerate(sizes)
        for number in range(size)
    ]
    asked = Devices(Cluster(tuple(devices)), PlanRequest(1, 1), {})
    speeds = [group[0].speed for group in asked.classes()]
    for count in range(1, sum(sizes) + 1):
        found = list(asked.mixes(count))
        every = itertools.product(*(range(len(group) + 1) for group in asked.classes()))
        assert sorted(found) == sorted(mix for mix in every if sum(mix) == count)
        total = [sum(n * speed for n, speed in zip(mix, speeds, strict=True)) for mix in found]
        assert total == sorted(total, reverse=True)


def test_more_mixes_than_could_be_listed_are_no_trouble():
    asked = Devices(distinct(60), PlanRequest(1, 1), {})
    first = list(itertools.islice(asked.mixes(30), 3))
    assert len(set(first)) == 3
    assert all(sum(mix) == 30 for mix in first)


@pytest.mark.parametrize("stages", [2, 15, 30])
def test_many_devices_that_all_differ_get_a_plan_in_time(stages):
    found = plan(random_profile(1, 40), stages, 30, cluster=distinct(30), time_limit_s=0.5)
    assert len({stage.device for stage in found.stages}) == stages
    assert found.status == "feasible"
    assert 0 < found.bound_s <= found.objective_s


@pytest.mark.parametrize("seed", range(4))
def test_devices_that_were_not_tried_are_part_of_the_bound(seed, monkeypatch):
    monkeypatch.setattr(assign, "_MIXES", 2)
    measured, cluster = random_profile(seed, 5), distinct(4, step=0.5)
    request = PlanRequest(2, 4, cluster=cluster, link_bytes_per_s=5.0)
    found = planner.plan(measured, request)
    built = graph.build(measured)
    names = [device.name for device in cluster.devices]
    least = min(
        planner.ordered_model(built, request, order=order).evaluate(stage_of).objective_s
        for order in itertools.permutations(names, 2)
        for stage_of in every_plan(built, 2)
    )
    assert found.bound_s <= least * (1 + 1e-9)
    assert found.status == "feasible" or math.isclose(found.objective_s, least)


def test_devices_whose_search_came_to_nothing_are_part_of_the_bound(monkeypatch):
    """The search of the fastest devices ends without an answer: what others give is no proof."""
    true_solve, calls = assign._solve, []

    def solve(*args):
        calls.append(args)
        return Failure("unknown") if len(calls) == 1 else true_solve(*args)

    monkeypatch.setattr(assign, "_solve", solve)
    found = plan(random_profile(2, 8), 2, cluster=distinct(3, step=1.0))
    assert len(calls) > 1
    assert found.status == "feasible"
    assert found.bound_s < found.objective_s
