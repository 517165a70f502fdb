"""The search tries whole configurations and says why each lost."""

import dataclasses

import pytest

from autosplit import search as searching
from autosplit.configurations import Space
from autosplit.errors import AutosplitError, InfeasibleError, UsageError
from autosplit.types import PlanRequest
from tests.builders import profile

ANY = PlanRequest(1, 1, link_bytes_per_s=100.0)


def search(profiles, request=ANY, *, devices, global_batch, **choices):
    choices = {"replicas": False, **choices}
    return searching.search(profiles, request, Space(devices, global_batch, **choices))


def sized(rows, layers=8, **fields):
    """Return a profile whose times grow less than its batch."""
    measured = profile([1.0 + rows] * layers, **fields)
    model = dataclasses.replace(measured.model, batch_size=rows)
    return dataclasses.replace(measured, model=model)


def test_the_fastest_configuration_comes_first():
    found = search([sized(1), sized(4)], ANY, devices=4, global_batch=32)
    rates = [candidate.samples_per_s for candidate in found.candidates]
    assert rates == sorted(rates, reverse=True)
    assert found.best is found.candidates[0].plan
    for candidate in found.candidates:
        request = candidate.request
        assert request.ranks * request.replicas <= 4
        assert request.replicas * request.microbatches * candidate.microbatch_size == 32
        assert bool(candidate.reason) == (candidate is not found.candidates[0])


def test_a_search_that_finds_nothing_ends_too(monkeypatch):
    now, calls = [1000.0], []

    def plan(measured, request, **_):
        calls.append(request.time_limit_s)
        now[0] += 10.0
        raise InfeasibleError("none was found")

    monkeypatch.setattr(searching, "plan", plan)
    monkeypatch.setattr(searching.time, "monotonic", lambda: now[0])
    request = dataclasses.replace(ANY, time_limit_s=10.0)
    with pytest.raises(AutosplitError, match="no plan was found in 10 s"):
        search([sized(1)], request, devices=8, global_batch=32)
    assert len(calls) == 2


def test_losers_say_why():
    found = search([sized(1)], ANY, devices=4, global_batch=4, schedules=("gpipe", "1f1b"))
    reasons = {(c.request.ranks, c.request.schedule): c.reason for c in found.candidates}
    assert "compute" in reasons[1, "gpipe"]
    assert found.best.request.ranks == 4


def test_memory_rules_out_and_says_so():
    heavy = sized(1, param_bytes=[100] * 8)
    request = dataclasses.replace(ANY, memory_bytes=900, optimizer="sgd")
    found = search([heavy], request, devices=4, global_batch=8)
    assert found.best.request.ranks >= 2
    lost = {c.request.ranks: c.reason for c in found.candidates if c.plan is None}
    assert "weights, gradients and optimizer state alone fill" in lost[1]
    assert all(c.memory_bytes <= 900 for c in found.candidates)


def test_replicas_pay_for_their_gradients():
    light, heavy = sized(1), sized(1, param_bytes=[4000] * 8)
    assert search([light], ANY, devices=2, global_batch=8, replicas=True).best.request.replicas == 2
    found = search([heavy], ANY, devices=2, global_batch=8, replicas=True)
    assert found.best.request.replicas == 1
    assert any("summing gradients" in candidate.reason for candidate in found.candidates)


def test_a_batch_that_no_microbatch_divides():
    with pytest.raises(UsageError) as caught:
        search([sized(4)], ANY, devices=2, global_batch=6)
    assert "4" in caught.value.cause


def test_nothing_fits():
    request = dataclasses.replace(ANY, memory_bytes=10)
    with pytest.raises(InfeasibleError) as caught:
        search([sized(1, param_bytes=[100] * 8)], request, devices=2, global_batch=4)
    assert "optimizer state alone fill" in caught.value.cause


def test_bounds_leave_out_what_cannot_be_among_the_best():
    profiles = [sized(rows) for rows in (1, 2, 4)]
    found = search(profiles, devices=8, global_batch=64, replicas=True)
    planned = [each for each in found.candidates if each.outcome == "planned"]
    slower = [each for each in found.candidates if each.outcome == "slower"]
    assert len(planned) >= 10
    assert slower
    tenth = planned[9].samples_per_s
    for each in slower:
        assert each.plan is None
        assert each.most_samples_per_s < tenth
        assert "behind, by the bound of its step" in each.reason


def test_equal_speeds_are_told_apart_by_devices_and_memory():
    found = search([sized(1)], devices=4, global_batch=8, schedules=("gpipe", "1f1b"))
    assert found.best.request.schedule == "1f1b"
    gpipe = next(each for each in found.candidates if each.request.schedule == "gpipe")
    assert gpipe.reason.startswith("as fast")


def test_a_plan_tells_the_limits_that_were_asked_for():
    request = dataclasses.replace(ANY, time_limit_s=30.0)
    found = search([sized(1)], request, devices=2, global_batch=4, schedules=("1f1b",))
    assert (found.best.request.time_limit_s, found.best.request.gap) == (30.0, 0.0)
    assert found.best.status == "optimal"


def test_memory_of_a_device_is_that_of_all_its_stages():
    heavy = sized(1, param_bytes=[100] * 8)
    found = search([heavy], devices=2, global_batch=4, schedules=("interleaved",), stages=4)
    best = found.candidates[0]
    stages = best.plan.stages
    assert best.memory_bytes == max(
        sum(stage.memory.total_bytes for stage in stages if stage.rank == rank) for rank in (0, 1)
    )


def test_recomputation_makes_room():
    heavy = sized(1, saved_bytes=[1000] * 8)
    request = dataclasses.replace(ANY, memory_bytes=4000)
    found = search([heavy], request, devices=2, global_batch=4, schedules=("1f1b",))
    assert found.best.request.recompute != "none"
    assert any(stage.recompute for stage in found.best.stages)


def test_numbers_that_no_configuration_has():
    with pytest.raises(UsageError) as caught:
        search([sized(1)], devices=2, global_batch=4, stages=7)
    assert "asked for" in caught.value.message


def test_nothing_is_recomputed_where_everything_fits():
    heavy = sized(1, saved_bytes=[1000] * 8)
    request = dataclasses.replace(ANY, memory_bytes=100_000)
    found = search([heavy], request, devices=2, global_batch=4, schedules=("1f1b",))
    assert found.best.request == dataclasses.replace(
        request, stages=2, microbatches=4, ranks=2, schedule="1f1b"
    )
    outcomes = {each.outcome for each in found.candidates if each.request.recompute == "auto"}
    assert outcomes == {"same"}


def test_a_wish_at_fault_is_told_as_such():
    """More or larger devices would not help against a name that fits no layer."""
    for wish in ({"pins": (("nope", 0),)}, {"pins": (("l1", 9),)}, {"granularity": "op"}):
        with pytest.raises(UsageError):
            search([sized(1)], dataclasses.replace(ANY, **wish), devices=2, global_batch=4)
    apart = dataclasses.replace(ANY, apart=(("l0", "l1"), ("l1", "l2")))
    with pytest.raises(InfeasibleError) as caught:
        search([sized(1)], apart, devices=2, global_batch=4, stages=2)
    assert "leave out" in caught.value.hint
