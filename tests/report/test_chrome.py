"""A simulated step as a Chrome trace."""

import dataclasses
import json
from collections import Counter

import pytest

from autosplit import planner
from autosplit.errors import DataError
from autosplit.report.chrome import trace_data
from autosplit.schedules import SCHEDULES
from autosplit.types import Cluster, Device, PlanRequest
from tests.builders import profile


@pytest.mark.parametrize("overlap", [False, True])
def test_every_action_is_an_event(overlap):
    measured = profile([1.0] * 4)
    request = PlanRequest(2, 4, link_bytes_per_s=10.0, overlap=overlap)
    found = planner.plan(measured, request)
    data = trace_data(planner.timeline(measured, found))
    assert json.loads(json.dumps(data)) == data
    events = [event for event in data["traceEvents"] if event["ph"] == "X"]
    computed = [event for event in events if event["cat"] in ("forward", "backward")]
    assert len(computed) == 2 * 2 * 4
    assert max(e["ts"] + e["dur"] for e in events) == pytest.approx(1e6 * found.step_s)
    assert {event["pid"] for event in events} == {0, 1}
    assert {event["tid"] for event in events if event["cat"] == "send"} == {int(overlap)}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_every_schedule_shows_its_work_its_transfers_and_its_memory(name):
    ranks = 2
    stages = SCHEDULES[name].default_stages(ranks)
    measured = profile([1.0, 2.0, 1.0, 2.0, 1.0], saved_bytes=[100] * 5, param_bytes=[10] * 5)
    layers = [dataclasses.replace(each, weight_gradient_s=0.5) for each in measured.layers]
    measured = dataclasses.replace(measured, layers=tuple(layers))
    request = PlanRequest(stages, 4, schedule=name, ranks=ranks, link_bytes_per_s=10.0)
    found = planner.plan(measured, request)
    data = trace_data(planner.timeline(measured, found))
    events = data["traceEvents"]
    work = [event for event in events if event.get("cat") in ("forward", "backward", "weight")]
    each = Counter((event["cat"], event["args"]["stage"]) for event in work)
    assert {each["forward", stage] for stage in range(stages)} == {4}
    assert {each["backward", stage] for stage in range(stages)} == {4}
    crossed = sum(stage.send_s > 0 for stage in found.stages)
    assert len({e["args"]["stage"] for e in events if e.get("cat") == "send"}) >= crossed - 1
    assert data["otherData"]["step_s"] == pytest.approx(found.step_s)
    assert data["otherData"]["idle"] == pytest.approx(
        [next(s.idle for s in found.stages if s.rank == rank) for rank in range(ranks)]
    )
    for rank, planned in enumerate(found.memory_by_rank):
        counters = [e for e in events if e["ph"] == "C" and e["pid"] == rank]
        times = [event["ts"] for event in counters]
        held = [sum(event["args"].values()) for event in counters]
        assert times == sorted(times)
        assert counters[-1]["args"]["activation_bytes"] == 0
        # The peaks of a device's stages need not meet.
        assert max(held) == planned if stages == ranks else max(held) <= planned


def test_devices_keep_their_places():
    measured = profile([1.0, 1.0, 1.0, 8.0])
    cluster = Cluster((Device("fast", "f", speed=4.0), Device("slow", "s")))
    found = planner.plan(measured, PlanRequest(2, 8, cluster=cluster))
    assert planner.timeline(measured, found).step_s == pytest.approx(found.step_s)


def test_gradients_of_shared_parameters_come_last():
    measured = profile([1.0] * 3, shared=[(50, (0, 2))])
    found = planner.plan(measured, PlanRequest(3, 4, link_bytes_per_s=10.0))
    events = trace_data(planner.timeline(measured, found))["traceEvents"]
    events = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in events[-3:]] == ["sum gradients"] * 3


def test_another_profile_is_refused():
    found = planner.plan(profile([1.0] * 3), PlanRequest(2, 4))
    with pytest.raises(DataError, match="another profile"):
        planner.timeline(profile([2.0] * 3), found)
