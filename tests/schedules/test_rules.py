"""Which numbers each schedule runs, and how much it holds."""

import pytest

from autosplit import schedules
from autosplit.errors import UsageError


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [5, 8])
def test_gpipe_holds_every_microbatch(stages, microbatches):
    assert schedules.make("gpipe", stages, microbatches).in_flight == (microbatches,) * stages


@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("microbatches", [5, 8])
def test_1f1b_holds_one_more_for_each_stage_that_follows(stages, microbatches):
    expected = tuple(min(microbatches, stages - stage) for stage in range(stages))
    assert schedules.make("1f1b", stages, microbatches).in_flight == expected


def test_1f1b_needs_as_many_microbatches_as_stages():
    with pytest.raises(UsageError) as caught:
        schedules.make("1f1b", 4, 3)
    assert "--microbatches 4" in str(caught.value)
    assert schedules.make("gpipe", 4, 3).in_flight == (3, 3, 3, 3)


def test_interleaved_needs_whole_rounds():
    assert schedules.make("interleaved", 4, 3).round_size == 3
    with pytest.raises(UsageError) as caught:
        schedules.make("interleaved", 4, 5)
    assert "4 or 6" in caught.value.hint


def test_stages_share_out_equally():
    with pytest.raises(UsageError, match="3 stages"):
        schedules.make("interleaved", 3, 4, ranks=2)
    with pytest.raises(UsageError, match="3 stages"):
        schedules.make("zbv", 3, 4, ranks=2)


def test_dualpipev_needs_as_many_microbatches_as_stages():
    with pytest.raises(UsageError, match="4 stages with 2"):
        schedules.make("dualpipev", 4, 2)


def test_a_step_too_large_to_simulate_is_refused():
    with pytest.raises(UsageError, match="too large to simulate"):
        schedules.make("1f1b", 2, 10**17)


def test_placement():
    loop = schedules.make("interleaved", 6, 6, ranks=3)
    assert [loop.rank_of(stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    fold = schedules.make("zbv", 6, 6)
    assert [fold.rank_of(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]


def test_unknown_schedule_lists_the_known_ones():
    with pytest.raises(UsageError) as caught:
        schedules.make("2f2b", 2, 2)
    assert "1f1b" in caught.value.hint


@pytest.mark.parametrize("name", list(schedules.SCHEDULES))
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_defaults_belong_together(name, ranks):
    kind = schedules.SCHEDULES[name]
    stages = kind.default_stages(ranks)
    assert kind.default_ranks(stages) == ranks
    assert schedules.make(name, stages, 8).ranks == ranks


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((0, 1), {"gpipe": 3, "1f1b": 3, "looped-bfs": 3, "interleaved": 3, "zero-bubble": 3}),
        ((0, 1, 0, 1), {"looped-bfs": 3, "interleaved": 3, "zero-bubble": 3}),
        ((0, 1, 1, 0), {"zbv": 3, "dualpipev": 4}),
        ((0, 1, 0), {}),
        ((1, 0), {}),
    ],
)
def test_schedules_that_fit_ranks(ranks, expected):
    found = schedules.fitting(ranks, at_least=3)
    assert {schedule.name: schedule.microbatches for schedule in found} == expected


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("at_least", [1, 2, 5, 7])
def test_the_fewest_microbatches_are_found(ranks, at_least):
    for name in schedules.SCHEDULES:
        stages = schedules.SCHEDULES[name].default_stages(ranks)
        kind = schedules.make(name, stages, 4 * stages * ranks, ranks)
        placed = [kind.rank_of(stage) for stage in range(stages)]
        found = {each.name: each for each in schedules.fitting(placed, at_least)}
        assert found[name].microbatches >= at_least
