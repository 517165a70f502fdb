"""Plans on devices that differ: their order, speeds, memory and links are part of the answer."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import graph, planner
from autosplit.errors import UsageError
from autosplit.types import Cluster, Device, LinkSpeed, PairLink, PlanRequest
from tests.builders import profile, random_profile
from tests.planning import every_plan, plan


def mixed(*speeds, memory=None, **links):
    return Cluster(
        tuple(
            Device(f"d{index}", f"kind{speed}", "box", memory, speed)
            for index, speed in enumerate(speeds)
        ),
        **links,
    )


def test_work_follows_speed():
    found = plan(profile([1.0] * 9), 2, cluster=mixed(1.0, 2.0), objective="bottleneck")
    work = {stage.device: len(stage.layers) for stage in found.stages}
    assert work == {"d0": 3, "d1": 6}
    assert found.status == "optimal"


def test_the_order_of_devices_is_part_of_the_answer():
    # The heavy layers come last, and do not fit beside anything on the slow device.
    found = plan(profile([1.0, 1.0, 1.0, 8.0]), 2, cluster=mixed(4.0, 1.0))
    assert [stage.device for stage in found.stages] == ["d1", "d0"]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(3, 6))
def test_mixed_devices_equal_all_orders_and_splits(seed, count):
    measured = random_profile(seed, count)
    cluster = mixed(1.0, 2.0, 3.0)
    request = PlanRequest(3, 4, cluster=cluster, objective="bottleneck")
    model = planner.cost_model(graph.build(measured), request)
    best = min(
        max(
            (stage.forward_s + stage.backward_s) / device.speed
            for stage, device in zip(model.evaluate(found).stages, order, strict=True)
        )
        for found in every_plan(model.graph, 3)
        for order in itertools.permutations(cluster.devices)
    )
    assert planner.plan(measured, request).objective_s == pytest.approx(best)


def test_a_slow_link_goes_to_the_thin_edge():
    slow = PairLink(("d0", "d1"), LinkSpeed(1.0))
    links = {"links": (slow,), "default": LinkSpeed(1e6)}
    measured = profile([1.0] * 6, {(i, i + 1): 1 if i == 4 else 100 for i in range(5)})
    found = plan(measured, 2, cluster=mixed(1.0, 1.0, **links))
    assert [len(stage.layers) for stage in found.stages] == [5, 1]


def test_unused_devices_are_the_slow_ones():
    found = plan(profile([1.0] * 6), 2, cluster=mixed(1.0, 3.0, 3.0))
    assert {stage.device for stage in found.stages} == {"d1", "d2"}


def test_more_ranks_than_devices():
    with pytest.raises(UsageError, match="3 ranks, but the cluster has 2 devices"):
        plan(profile([1.0] * 6), 3, cluster=mixed(1.0, 2.0))


def test_budgets_are_those_of_the_devices():
    cluster = Cluster(
        (Device("small", "s", "box", 450, 1.0), Device("large", "l", "box", 2000, 1.0))
    )
    found = plan(profile([1.0] * 6, param_bytes=[100] * 6), 2, cluster=cluster, optimizer="sgd")
    sizes = {stage.device: len(stage.layers) for stage in found.stages}
    assert sizes == {"small": 2, "large": 4}


def test_several_stages_on_each_device_of_a_cluster():
    found = plan(profile([1.0] * 8), 4, cluster=mixed(1.0, 3.0), schedule="interleaved")
    assert [stage.device for stage in found.stages] == ["d0", "d1", "d0", "d1"]
    work = dict.fromkeys(("d0", "d1"), 0)
    for stage in found.stages:
        work[stage.device] += len(stage.layers)
    assert work["d1"] > work["d0"]


def test_a_kind_may_have_a_profile_of_its_own():
    slow_front = profile([4.0, 1.0, 1.0, 1.0])
    slow_back = profile([1.0, 1.0, 1.0, 4.0])
    cluster = Cluster((Device("a", "a"), Device("b", "b")))
    found = planner.plan(slow_front, PlanRequest(2, 8, cluster=cluster), profiles={"b": slow_back})
    assert [stage.device for stage in found.stages] == ["b", "a"]
    assert found.bottleneck_s == pytest.approx(6.0)
    assert math.isclose(found.single_s, 8 * 21)


def test_copies_have_devices_of_their_own():
    alike = Cluster(tuple(Device(f"d{index}") for index in range(4)))
    assert plan(profile([1.0] * 6), 2, cluster=alike, replicas=2)
    with pytest.raises(UsageError, match="3 copies of 2 ranks, but the cluster has 4 devices"):
        plan(profile([1.0] * 6), 2, cluster=alike, replicas=3)
    with pytest.raises(UsageError, match="devices that are all alike"):
        plan(profile([1.0] * 6), 1, cluster=mixed(1.0, 2.0), replicas=2)
