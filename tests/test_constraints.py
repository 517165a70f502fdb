"""Wishes of a plan: where layers stand and with which others, granted or refused by name."""

import dataclasses
import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import graph, planner, solvers
from autosplit.errors import DataError, InfeasibleError, UsageError
from autosplit.types import PlanRequest
from autosplit.units import format_share
from tests.builders import profile, random_profile
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
        planner.Task, "answer", lambda task, request, *_, **__: worse(task, request, poor)
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
        with pytest.raises(UsageError, match="boundar"):
            plan(profile([1.0] * 6), 3, boundaries=wrong)
    with pytest.raises(UsageError, match="2 boundaries make 3 stages, not 2"):
        plan(profile([1.0] * 6), 2, boundaries=("l1", "l2"))


# ---------------------------------------------------------------- apart, alone, any of these


def named(paths, **fields):
    """Return a profile of layers of one second, a chain, with these module paths for names."""
    measured = profile([1.0] * len(paths), **fields)
    name_of = {f"l{number}": path for number, path in enumerate(paths)}
    return dataclasses.replace(
        measured,
        layers=tuple(
            dataclasses.replace(layer, name=path, module=path.partition("#")[0])
            for layer, path in zip(measured.layers, paths, strict=True)
        ),
        values=tuple(
            dataclasses.replace(
                value,
                producer=value.producer and name_of[value.producer],
                consumers=tuple(name_of[reader] for reader in value.consumers),
            )
            for value in measured.values
        ),
    )


PATHS = ("embed", "h.0.attn", "h.0.attn#2", "h.0.mlp", "h.1.attn", "h.1.mlp", "norm", "head")
MODEL = named(PATHS)


def granted(stages, request):
    """Whether stages, as sets of names, grant every wish."""

    def inside(name):
        return {path for path in PATHS if path.split("#")[0].startswith(name)}

    whole = all(
        any(set().union(*map(inside, names)) <= stage for stage in stages)
        for names in (*request.together, *request.alone)
    )
    apart = all(
        sum(bool(inside(name) & stage) for name in names) <= 1
        for names in request.apart
        for stage in stages
    )
    alone = all(set().union(*map(inside, names)) in stages for names in request.alone)
    pinned = all(inside(name) <= stages[stage] for name, stage in request.pins)
    return whole and apart and alone and pinned


NAMES = st.sampled_from(["embed", "h.0", "h.1", "h.0.attn", "h.1.mlp", "norm", "head"])
SEVERAL = st.lists(NAMES, unique=True, min_size=2, max_size=2).map(tuple)


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 4),
    st.lists(st.tuples(NAMES, st.integers(0, 1)), max_size=1),
    st.lists(SEVERAL, max_size=1),
    st.lists(SEVERAL, max_size=2),
    st.lists(NAMES.map(lambda name: (name,)), max_size=1),
    st.sampled_from(["auto", "ilp"]),
)
def test_the_best_plan_that_grants_all_wishes_is_found(
    stages, pins, together, apart, alone, solver
):
    pytest.importorskip("highspy")
    request = PlanRequest(
        stages,
        4,
        pins=tuple(pins),
        together=tuple(together),
        apart=tuple(apart),
        alone=tuple(alone),
        solver=solver,
    )
    model = planner.cost_model(graph.build(MODEL), request)
    best = math.inf
    for cuts in itertools.combinations(range(1, len(PATHS)), stages - 1):
        bounds = (0, *cuts, len(PATHS))
        parts = [set(PATHS[i:j]) for i, j in itertools.pairwise(bounds)]
        if granted(parts, request):
            placed = [sum(cut <= layer for cut in cuts) for layer in range(len(PATHS))]
            best = min(best, model.evaluate(placed).objective_s)
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            planner.plan(MODEL, request)
        return
    found = planner.plan(MODEL, request)
    assert granted([set(stage.layers) for stage in found.stages], request)
    assert found.objective_s == pytest.approx(best)
    assert found.status == "optimal"


def test_the_head_may_have_a_stage_alone():
    found = plan(MODEL, 3, alone=(("head",),))
    assert found.stages[2].layers == ("head",)
    found = plan(MODEL, 3, alone=(("norm", "head"),))
    assert found.stages[2].layers == ("norm", "head")


def test_modules_of_a_pattern_are_each_kept_whole():
    whole = stage_of(plan(MODEL, 4, together=(("h.*",),)))
    for block in ("h.0", "h.1"):
        assert len({stage for name, stage in whole.items() if name.startswith(block)}) == 1
    apart = stage_of(plan(MODEL, 4, apart=(("h.*",),)))
    assert apart["h.0.mlp"] < apart["h.1.attn"]
    attention = stage_of(plan(MODEL, 6, together=(("h.*.attn",),)))
    assert attention["h.0.attn"] == attention["h.0.attn#2"]


@pytest.mark.parametrize(
    ("stages", "wishes", "words"),
    [
        (3, {"together": (("h.0",),), "apart": (("h.0.attn", "h.0.mlp"),)}, "h.0.attn and h.0.mlp"),
        (3, {"apart": (("h.0", "h.0.mlp"),)}, "h.0.mlp is part of both"),
        (3, {"alone": (("embed", "h.1"),)}, "h.0.attn has to stay with it"),
        (3, {"alone": (("head",),), "together": (("norm", "head"),)}, "norm has to stay with it"),
        (2, {"alone": (("norm",),)}, "leave out --alone norm"),
        (2, {"apart": (("embed", "h.0", "h.1"),)}, "leave out --apart embed,h.0,h.1"),
        (2, {"pins": (("head", 0),), "alone": (("embed",),)}, "leave out"),
        (3, {"pins": (("embed", 0), ("h.0", 0)), "alone": (("embed",),)}, "both pinned to stage 0"),
        (3, {"boundaries": ("h.1", "head"), "apart": (("embed", "h.0"),)}, "both pinned to stage"),
        (3, {"boundaries": ("h.1", "head"), "pins": (("embed", 1),)}, "pinned to stages 1 and 0"),
        (2, {"together": (("embed", "head"),)}, "only 1 piece"),
    ],
)
def test_wishes_that_contradict_are_refused_by_name(monkeypatch, stages, wishes, words):
    monkeypatch.setattr(solvers, "solve", None)
    with pytest.raises(InfeasibleError) as caught:
        plan(MODEL, stages, **wishes)
    error = caught.value
    assert words in f"{error.message}\n{error.cause}\n{error.hint}"


def test_one_module_alone_cannot_be_apart():
    with pytest.raises(UsageError, match="--apart head names one module only"):
        plan(MODEL, 2, apart=(("head",),))


def test_the_wish_to_leave_out_is_named_where_only_the_search_can_tell():
    forks = profile([1.0] * 3, {})
    wishes = {"apart": (("l0", "l1"), ("l1", "l2"), ("l0", "l2"))}
    with pytest.raises(InfeasibleError) as caught:
        plan(forks, 2, **wishes)
    assert "meets the constraints" in caught.value.message
    assert "--apart l0,l1, --apart l1,l2, --apart l0,l2" in caught.value.cause
    assert "leave out --apart l0,l1, or --apart l1,l2, or --apart l0,l2" in caught.value.hint
    assert len(plan(forks, 3, **wishes).stages) == 3


def test_wishes_that_cost_memory_are_named():
    measured = profile([1.0] * 4, param_bytes=[100] * 4)
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, 2, optimizer="sgd", memory_bytes=450, alone=(("l0",),))
    assert "the same without --alone l0" in caught.value.hint


def test_boundaries_and_improvement_go_with_wishes():
    given = plan(MODEL, 3, boundaries=("h.1", "head"), alone=(("head",),))
    assert given.stages[2].layers == ("head",)
    request = PlanRequest(3, 8, alone=(("head",),), apart=(("embed", "h.1"),))
    found = planner.plan(MODEL, request, improve=given)
    assert found.stages[2].layers == ("head",)
    assert found.objective_s <= given.objective_s * (1 + 1e-9)
    assert "the given plan" in " ".join(found.notes)


# ---------------------------------------------------------------- operations, layers, blocks


def operations(seed, count):
    """Return a random profile of operations, every two of them a layer, every two such a block."""
    measured = random_profile(seed, count)
    return dataclasses.replace(
        measured,
        layers=tuple(
            dataclasses.replace(layer, layer=f"part{number // 2}", block=f"h.{number // 4}")
            for number, layer in enumerate(measured.layers)
        ),
    )


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(8, 16), st.sampled_from(["step", "bottleneck"]))
def test_finer_pieces_are_never_worse(seed, count, objective):
    measured = operations(seed, count)
    costs = []
    for granularity in ("op", "layer", "block"):
        found = plan(measured, 2, objective=objective, granularity=granularity)
        placed = stage_of(found)
        pieces = {"op": 1, "layer": 2, "block": 4}[granularity]
        for first in range(0, count, pieces):
            inside = range(first, min(first + pieces, count))
            assert len({placed[f"l{number}"] for number in inside}) == 1
        # The least objective: the simulation may have put another plan first.
        assert found.stopped in (None, "simulation")
        costs.append(found.bound_s)
    assert costs[0] <= costs[1] * (1 + 1e-9)
    assert costs[1] <= costs[2] * (1 + 1e-9)


def test_a_profile_of_layers_cannot_be_cut_by_operations():
    with pytest.raises(UsageError, match="whole layers") as caught:
        plan(MODEL, 2, granularity="op")
    assert "profile MODEL --granularity op" in caught.value.hint
