"""A step played through, against closed forms and rules that hold for any pipeline."""

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import schedules
from autosplit.cost import BoundaryCost, PlanCost, StageCost
from autosplit.simulate import simulate
from autosplit.types import StageMemory


def cost(forward_s, backward_s, transfers=None, activation_bytes=None):
    count = len(forward_s)
    transfers = transfers or [0.0] * (count - 1)
    kept = activation_bytes or [1] * count
    return PlanCost(
        stages=tuple(
            StageCost((index,), f, b, f + b, kept[index], StageMemory())
            for index, (f, b) in enumerate(zip(forward_s, backward_s, strict=True))
        ),
        boundaries=tuple(BoundaryCost(("v",), 1, 1, x, x) for x in transfers),
        sync_s=0.0,
        bottleneck_s=0.0,
        objective_s=0.0,
    )


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("microbatches", [4, 9])
def test_equal_stages_take_m_plus_s_minus_1_turns(name, stages, microbatches):
    schedule = schedules.make(name, stages, microbatches)
    timeline = simulate(cost([1.0] * stages, [2.0] * stages), schedule)
    assert timeline.step_s == pytest.approx((microbatches + stages - 1) * 3)
    bubble = (stages - 1) / (microbatches + stages - 1)
    assert [timeline.idle(rank) for rank in range(stages)] == pytest.approx([bubble] * stages)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaving_divides_the_bubble_by_the_chunks(ranks, chunks):
    microbatches = 2 * ranks
    schedule = schedules.make("interleaved", ranks * chunks, microbatches, ranks)
    stages = ranks * chunks
    timeline = simulate(cost([1.0] * stages, [2.0] * stages), schedule)
    assert timeline.step_s == pytest.approx((microbatches * chunks + ranks - 1) * 3)


def test_a_split_backward_fills_the_bubble():
    schedule = schedules.make("zbv", 4, 8)
    even = cost([1.0] * 4, [2.0] * 4)
    whole = simulate(even, schedule)
    halves = tuple(dataclasses.replace(each, weight_gradient_s=1.0) for each in even.stages)
    split = simulate(dataclasses.replace(even, stages=halves), schedule)
    assert split.step_s < whole.step_s
    # Known of ZBV when F = I = W: all that is left is the way of the first input through half
    # of the ranks.
    assert split.step_s == pytest.approx(8 * 2 * 3 + 1)


def test_inference_runs_forwards_alone():
    schedule = schedules.make("gpipe", 3, 5)
    timeline = simulate(cost([1.0] * 3, [2.0] * 3), schedule, training=False)
    assert timeline.step_s == pytest.approx(5 + 2)
    assert {event.kind for event in timeline.events} == {"forward"}


def test_added_transfers_occupy_both_ranks():
    schedule = schedules.make("gpipe", 2, 2)
    timeline = simulate(cost([1.0, 1.0], [1.0, 1.0], [0.5]), schedule)
    sends = [event for event in timeline.events if event.kind == "send"]
    receives = [event for event in timeline.events if event.kind == "receive"]
    assert len(sends) == len(receives) == 4
    # F0 0-1, send to 1.5 while rank 1 receives, F0 of rank 1 to 2.5.
    first = next(event for event in timeline.events if event.rank == 1 and event.kind == "forward")
    assert (first.start_s, first.end_s) == (1.5, 2.5)


def test_overlapped_transfers_queue_on_their_link():
    schedule = schedules.make("gpipe", 2, 3)
    timeline = simulate(cost([1.0, 1.0], [1.0, 1.0], [4.0]), schedule, overlap=True)
    sends = [event for event in timeline.events if event.kind == "send" and event.rank == 0]
    assert [(event.start_s, event.end_s) for event in sends] == [(1, 5), (5, 9), (9, 13)]
    assert all(event.on_link for event in sends)


def test_shared_gradients_are_summed_at_the_end():
    schedule = schedules.make("1f1b", 2, 2)
    base = cost([1.0, 1.0], [1.0, 1.0])
    tied = PlanCost(base.stages, base.boundaries, 0.5, 0.0, 0.0)
    assert simulate(tied, schedule).step_s == simulate(base, schedule).step_s + 0.5


def test_memory_over_time_peaks_below_the_sum_of_peaks():
    schedule = schedules.make("interleaved", 4, 4, ranks=2)
    timeline = simulate(cost([1.0] * 4, [2.0] * 4, activation_bytes=[10] * 4), schedule)
    for rank in range(2):
        most = sum(10 * schedule.in_flight[stage] for stage in (rank, rank + 2))
        assert 0 < timeline.peak_activation_bytes[rank] <= most


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from(["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zbv"]),
    st.integers(1, 3),
    st.booleans(),
)
def test_rules_of_any_step(seed, name, half, overlap):
    rng = random.Random(seed)
    stages = 2 * half
    schedule = schedules.make(name, stages, 2 * stages)
    priced = cost(
        [rng.uniform(0, 3) for _ in range(stages)],
        [rng.uniform(0, 3) for _ in range(stages)],
        [rng.choice([0.0, rng.uniform(0, 2)]) for _ in range(stages - 1)],
    )
    timeline = simulate(priced, schedule, overlap=overlap)
    for rank in range(schedule.ranks):
        own = [e for e in timeline.events if e.rank == rank and not e.on_link]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in itertools.pairwise(own))
        assert timeline.busy_s[rank] <= timeline.step_s + 1e-9
        assert 0 <= timeline.idle(rank) <= 1
    ends = {}
    for event in timeline.events:
        if event.kind in ("forward", "backward"):
            ends[event.kind, event.stage, event.microbatch] = (event.start_s, event.end_s)
    for (kind, stage, microbatch), (start, _) in ends.items():
        source = stage - 1 if kind == "forward" else stage + 1
        if 0 <= source < stages:
            boundary = priced.boundaries[min(stage, source)]
            assert start >= ends[kind, source, microbatch][1] + boundary.forward_s - 1e-9
        if kind == "backward":
            assert start >= ends["forward", stage, microbatch][1] - 1e-9
    assert timeline.in_flight == schedule.in_flight
    faster = simulate(priced, schedule, overlap=True)
    assert faster.step_s <= simulate(priced, schedule, overlap=False).step_s + 1e-9
