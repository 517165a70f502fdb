"""Wishes of a plan: where layers stand and with which others, granted or refused by name."""

import dataclasses

import pytest

from autosplit import planner
from autosplit.errors import DataError, InfeasibleError, UsageError
from autosplit.types import PlanRequest
from autosplit.units import format_share
from tests.builders import profile
from tests.planning import plan, stage_of


def test_pins_are_kept():
    found = plan(profile([1.0] * 6), 3, pins=(("l1", 1), ("l2", 2)))
    assert stage_of(found)["l1"] == 1
    assert stage_of(found)["l2"] == 2


def test_a_pin_may_name_a_module():
    measured = profile([1.0] * 6)
    layers = [
        dataclasses.replace(layer, module=f"h.{index // 3}.part")
        for index, layer in enumerate(measured.layers)
    ]
    found = plan(dataclasses.replace(measured, layers=tuple(layers)), 2, pins=(("h.0", 0),))
    assert {stage_of(found)[f"l{index}"] for index in range(3)} == {0}


@pytest.mark.parametrize(
    ("pins", "error", "words"),
    [
        ((("l9", 0),), UsageError, "no layer or module is called 'l9'"),
        ((("l0", 3),), UsageError, "cannot pin l0 to stage 3"),
        ((("l0", 0), ("l0", 1)), InfeasibleError, "pinned to stages 0 and 1"),
        ((("l4", 0), ("l1", 1)), InfeasibleError, "l4 is pinned to stage 0, before l1"),
    ],
)
def test_pins_that_cannot_be_kept_are_named(pins, error, words):
    with pytest.raises(error, match=words):
        plan(profile([1.0] * 6), 2, pins=pins)


def test_pins_that_leave_a_stage_empty():
    with pytest.raises(InfeasibleError, match="constraints"):
        plan(profile([1.0] * 4), 3, pins=(("l0", 1),))


def test_layers_stay_together():
    free = plan(profile([1.0] * 4), 2)
    assert [len(stage.layers) for stage in free.stages] == [2, 2]
    found = plan(profile([1.0] * 4), 2, together=(("l1", "l2"),))
    assert stage_of(found)["l1"] == stage_of(found)["l2"]
    assert found.objective_s > free.objective_s


def test_blocks_are_not_cut():
    measured = profile([1.0] * 6)
    layers = [
        dataclasses.replace(layer, block=f"h.{index // 2}")
        for index, layer in enumerate(measured.layers)
    ]
    found = plan(dataclasses.replace(measured, layers=tuple(layers)), 2, granularity="block")
    for block in range(3):
        assert stage_of(found)[f"l{2 * block}"] == stage_of(found)[f"l{2 * block + 1}"]


def test_the_price_of_whole_blocks_is_told():
    measured = profile([3.0, 1.0, 1.0, 1.0])
    layers = [
        dataclasses.replace(layer, block=f"h.{number // 2}")
        for number, layer in enumerate(measured.layers)
    ]
    found = plan(
        dataclasses.replace(measured, layers=tuple(layers)),
        2,
        granularity="block",
        objective="bottleneck",
    )
    free = plan(measured, 2, objective="bottleneck")
    price = format_share(found.objective_s / free.objective_s - 1)
    assert f"cutting between blocks only costs {price}" in " ".join(found.notes)


def improved(given, **request):
    measured = profile([1.0] * 6)
    return planner.plan(measured, PlanRequest(2, 8, **request), improve=given)


def test_a_given_plan_is_improved_and_the_gain_told():
    given = plan(profile([1.0] * 6), 2, boundaries=("l1",))
    found = improved(given)
    assert found.objective_s < given.objective_s
    assert "better than the given plan" in " ".join(found.notes)
    assert "as good as this one" in " ".join(improved(found).notes)


def test_a_given_plan_is_kept_where_the_search_ends_before_a_better_one(monkeypatch):
    given = plan(profile([1.0] * 6), 2)
    worse = planner.Task.given
    poor = plan(profile([1.0] * 6), 2, boundaries=("l1",))
    monkeypatch.setattr(
        planner.Task, "answer", lambda task, request, **_: worse(task, request, poor)
    )
    found = improved(given)
    assert stage_of(found) == stage_of(given)
    assert (found.solver, found.status) == ("given", "feasible")
    pinned = improved(given, pins=(("l1", 1),))
    assert stage_of(pinned) == stage_of(poor)
    assert "does not fit" in " ".join(pinned.notes)


def test_a_plan_of_other_layers_or_stages_cannot_be_improved():
    with pytest.raises(DataError, match="other layers"):
        improved(plan(profile([1.0] * 5), 2))
    with pytest.raises(DataError, match="3 stages, not 2"):
        improved(plan(profile([1.0] * 6), 3))


def test_given_boundaries_are_evaluated():
    found = plan(profile([1.0] * 6), 3, boundaries=("l1", "l2"))
    assert [len(stage.layers) for stage in found.stages] == [1, 1, 4]
    for wrong in (("l2", "l1"), ("l0", "l1"), ("l1",)):
        with pytest.raises(UsageError, match="boundaries"):
            plan(profile([1.0] * 6), 3, boundaries=wrong)
    with pytest.raises(UsageError, match="2 boundaries make 3 stages, not 2"):
        plan(profile([1.0] * 6), 2, boundaries=("l1", "l2"))
