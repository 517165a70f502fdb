"""What is searched, what bounds it, and what is said of what is left out."""

import dataclasses

import pytest

from autosplit.configurations import SPLIT, WHOLE, Measured, Space, refusal
from autosplit.planner import plan
from autosplit.types import PlanRequest
from tests.builders import random_profile

ANY = PlanRequest(1, 1, link_bytes_per_s=50.0)


def measured(seed=0, layers=7, rows=1, splits=False):
    found = random_profile(seed, layers, memory=True)
    share = 0.4 if splits else 0.0
    return Measured(
        dataclasses.replace(
            found,
            model=dataclasses.replace(found.model, batch_size=rows),
            layers=tuple(
                dataclasses.replace(each, weight_gradient_s=share * each.backward.median_s)
                for each in found.layers
            ),
        )
    )


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_no_simulated_step_beats_its_bound(seed, splits):
    subject = measured(seed, splits=splits)
    space = Space(devices=3, global_batch=6, recompute=("none", "all"))
    tried = 0
    for request in space.requests(subject, ANY):
        if refusal(request) is None:
            step_s = plan(subject.profile, request).step_s
            assert step_s >= subject.least_step_s(request) * (1 - 1e-9)
            tried += 1
    assert tried > 10


def test_split_backwards_are_tried_where_the_profile_knows_them_apart():
    space = Space(devices=4, global_batch=8)
    whole, split = measured(), measured(splits=True)
    assert {each.schedule for each in space.requests(whole, ANY)} == set(WHOLE)
    assert {each.schedule for each in space.requests(split, ANY)} == {*WHOLE, *SPLIT}
    assert any("gradients of weights apart" in note for note in space.notes([whole], ANY))
    assert not any("apart" in note for note in space.notes([split], ANY))


def test_recomputation_is_a_choice_where_memory_is_limited():
    space = Space(devices=2, global_batch=4)
    assert {each.recompute for each in space.requests(measured(), ANY)} == {"none"}
    limited = dataclasses.replace(ANY, memory_bytes=1000)
    found = {each.recompute for each in space.requests(measured(), limited)}
    assert found == {"none", "auto"}


def test_copies_that_cannot_share_the_rows_are_named():
    space = Space(devices=4, global_batch=8)
    copies = {each.replicas for each in space.requests(measured(rows=2), ANY)}
    assert copies == {1, 2, 4}
    assert any(note.startswith("not tried: 3 replicas") for note in space.notes([measured()], ANY))


def test_what_was_asked_for_is_not_searched():
    space = Space(devices=4, global_batch=8, schedules=("1f1b",), stages=2, microbatches=4)
    found = list(space.requests(measured(), ANY))
    assert {(each.stages, each.microbatches, each.schedule) for each in found} == {(2, 4, "1f1b")}
    assert {each.replicas for each in found} == {2}


def test_a_schedule_says_why_it_cannot_run():
    request = PlanRequest(4, 3, schedule="interleaved", ranks=2)
    assert refusal(dataclasses.replace(request, microbatches=4)) is None
    odd = dataclasses.replace(request, microbatches=5)
    assert "interleaved: the micro-batches must be a multiple of 2" in refusal(odd)


def test_state_that_no_device_holds():
    request = dataclasses.replace(ANY, stages=2, memory_bytes=10)
    assert "weights, gradients and optimizer state alone fill" in measured().lacking(request)
    assert measured().lacking(dataclasses.replace(request, memory_bytes=10**6)) is None
