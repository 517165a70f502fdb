"""What every schedule in the registry must keep."""

from collections import Counter

import pytest

from autosplit import planner, schedules
from autosplit.cost import BoundaryCost, PlanCost, StageCost
from autosplit.errors import UsageError
from autosplit.schedules import SCHEDULES, Kind
from autosplit.simulate import simulate
from autosplit.types import PlanRequest, StageMemory
from tests import examples

pipelining = pytest.importorskip("torch.distributed.pipelining", exc_type=ImportError)


def cases():
    for name in SCHEDULES:
        for ranks in (1, 2, 3, 4):
            for chunks in (1, 2, 3):
                for microbatches in (1, 2, 3, 4, 5, 8, 12):
                    yield name, ranks * chunks, microbatches, ranks


def make(name, stages, microbatches, ranks):
    try:
        return schedules.make(name, stages, microbatches, ranks)
    except UsageError:
        return None


def runnable(name):
    return [schedule for case in cases() if case[0] == name and (schedule := make(*case))]


every_schedule = pytest.mark.parametrize("name", list(SCHEDULES))


@every_schedule
def test_name_and_runtime(name):
    kind = SCHEDULES[name]
    assert kind.name == name
    assert hasattr(pipelining.schedules, kind.runtime_name)
    assert len(runnable(name)) > 10


@every_schedule
def test_every_action_once_on_its_rank(name):
    for schedule in runnable(name):
        seen = Counter(action for rank in schedule.order for action in rank)
        assert set(seen.values()) == {1}
        for rank, actions in enumerate(schedule.order):
            assert {schedule.rank_of(action.stage) for action in actions} <= {rank}
        for stage in range(schedule.stages):
            for microbatch in range(schedule.microbatches):
                kinds = {
                    action.kind.value
                    for action in seen
                    if (action.stage, action.microbatch) == (stage, microbatch)
                }
                assert kinds in ({"F", "B"}, {"F", "I", "W"})


@every_schedule
def test_each_rank_goes_forward_before_backward(name):
    for schedule in runnable(name):
        for actions in schedule.order:
            place = {action: position for position, action in enumerate(actions)}
            for action, position in place.items():
                if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
                    forward = schedules.Action(Kind.FORWARD, action.stage, action.microbatch)
                    assert place[forward] < position
                if action.kind is Kind.BACKWARD_WEIGHT:
                    half = schedules.Action(Kind.BACKWARD_INPUT, action.stage, action.microbatch)
                    assert place[half] < position


def even_cost(stages, forward_s=1.0, backward_s=2.0, transfer_s=0.0):
    stage = StageCost((0,), forward_s, backward_s, forward_s + backward_s, 1, StageMemory())
    boundary = BoundaryCost(("v",), 1, 1, transfer_s, transfer_s)
    return PlanCost((stage,) * stages, (boundary,) * (stages - 1), 0.0, 0.0, 0.0)


@every_schedule
def test_order_runs_to_its_end_and_holds_what_it_says(name):
    for schedule in runnable(name):
        for transfer_s in (0.0, 0.25):
            timeline = simulate(even_cost(schedule.stages, transfer_s=transfer_s), schedule)
            assert timeline.in_flight == schedule.in_flight
            work = 3.0 * schedule.microbatches * schedule.chunks
            assert all(busy == pytest.approx(work) for busy in timeline.busy_s)
            assert timeline.step_s >= work


@every_schedule
def test_equal_shares_and_known_ranks(name):
    for schedule in runnable(name):
        ranks = Counter(schedule.rank_of(stage) for stage in range(schedule.stages))
        assert set(ranks) == set(range(schedule.ranks))
        assert set(ranks.values()) == {schedule.chunks}


@every_schedule
@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1)])
def test_numbers_below_one_are_refused(name, numbers):
    with pytest.raises(UsageError):
        schedules.SCHEDULES[name](*numbers)


@every_schedule
def test_a_refusal_says_what_to_try(name):
    refused = [case for case in (*cases(), (name, 4, 4, 3)) if case[0] == name and not make(*case)]
    assert refused
    for case in refused:
        with pytest.raises(UsageError) as caught:
            schedules.make(*case)
        assert caught.value.cause
        assert caught.value.hint


@every_schedule
def test_the_planner_refuses_what_cannot_run(name):
    refused = {
        (stages, microbatches, ranks)
        for case, stages, microbatches, ranks in (*cases(), (name, 3, 4, 2), (name, 4, 4, 3))
        if case == name and stages <= 6 and not make(name, stages, microbatches, ranks)
    }
    assert (4, 4, 3) in refused
    for stages, microbatches, ranks in refused:
        request = PlanRequest(stages=stages, microbatches=microbatches, ranks=ranks, schedule=name)
        with pytest.raises(UsageError, match=f"schedule {name} cannot run {stages} stage"):
            planner.plan(examples.profile(), request)
