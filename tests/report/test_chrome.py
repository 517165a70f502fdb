"""A simulated step as a Chrome trace."""

import json

import pytest

from autosplit import planner
from autosplit.errors import DataError
from autosplit.report.chrome import trace_data
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


def test_devices_keep_their_places():
    measured = profile([1.0, 1.0, 1.0, 8.0])
    cluster = Cluster((Device("fast", "f", speed=4.0), Device("slow", "s")))
    found = planner.plan(measured, PlanRequest(2, 8, cluster=cluster))
    assert planner.timeline(measured, found).step_s == pytest.approx(found.step_s)


def test_gradients_of_shared_parameters_come_last():
    measured = profile([1.0] * 3, shared=[(50, (0, 2))])
    found = planner.plan(measured, PlanRequest(3, 4, link_bytes_per_s=10.0))
    events = trace_data(planner.timeline(measured, found))["traceEvents"]
    assert [event["name"] for event in events[-3:]] == ["sum gradients"] * 3


def test_another_profile_is_refused():
    found = planner.plan(profile([1.0] * 3), PlanRequest(2, 4))
    with pytest.raises(DataError, match="another profile"):
        planner.timeline(profile([2.0] * 3), found)
