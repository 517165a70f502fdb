"""Plans of small profiles: proven best, within their constraints, or refused with a reason."""

import dataclasses
import itertools
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import graph, planner
from autosplit.errors import DataError, ExitCode, InfeasibleError, UsageError
from autosplit.types import Cluster, Device, LinkSpeed, PairLink, PlanRequest
from autosplit.units import format_share
from tests.builders import profile, random_profile


def plan(measured, stages, microbatches=8, **request):
    return planner.plan(measured, PlanRequest(stages, microbatches, **request))


def stage_of(found):
    return {name: number for number, stage in enumerate(found.stages) for name in stage.layers}


def every_plan(built, stages):
    """Yield every assignment without empty stages in which no edge points backwards."""
    for assignment in itertools.product(range(stages), repeat=len(built)):
        if len(set(assignment)) == stages and all(
            assignment[a] <= assignment[b] for a, b in built.edges
        ):
            yield assignment


# ---------------------------------------------------------------- best plans


@settings(deadline=None, max_examples=25)
@given(
    st.integers(0, 10**6),
    st.integers(3, 7),
    st.integers(1, 3),
    st.sampled_from(["step", "bottleneck"]),
    st.booleans(),
)
def test_plans_are_the_best_of_all(seed, count, stages, objective, overlap):
    measured = random_profile(seed, count)
    request = PlanRequest(
        stages, 5, objective=objective, overlap=overlap, link_bytes_per_s=2.0, latency_s=0.5
    )
    model = planner.cost_model(graph.build(measured), request)
    best = min(model.evaluate(found).objective_s for found in every_plan(model.graph, stages))
    found = planner.plan(measured, request)
    assert found.objective_s == pytest.approx(best)
    assert found.bound_s <= found.objective_s * (1 + 1e-9)
    assert found.status == "optimal"
    assert found.gap == 0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 10**6), st.integers(4, 7), st.floats(0.5, 1.0))
def test_plans_fit_their_budget_or_none_does(seed, count, share):
    measured = random_profile(seed, count, memory=True)
    free = plan(measured, 2, 4)
    budget = int(share * max(stage.memory.total_bytes for stage in free.stages))
    request = PlanRequest(2, 4, memory_bytes=budget)
    model = planner.cost_model(graph.build(measured), request)
    fitting = [
        cost.objective_s
        for assignment in every_plan(model.graph, 2)
        if not any(model.rank_excess(cost := model.evaluate(assignment)))
    ]
    found = planner.Task(model.graph, {}).attempt(request)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found.fits
        assert found.cost.objective_s >= min(fitting) * (1 - 1e-9)
        assert found.bound_s <= min(fitting) * (1 + 1e-9)
        if found.proven:
            assert found.cost.objective_s == pytest.approx(min(fitting))


def test_a_plan_is_one_of_its_profile():
    measured = random_profile(7, 20, memory=True)
    found = plan(measured, 4, memory_bytes=10**6)
    assert set(found.order) == {layer.name for layer in measured.layers}
    assert found.fingerprint == measured.fingerprint
    placed = stage_of(found)
    for value in measured.values:
        assert all(placed[value.producer] <= placed[reader] for reader in value.consumers)
    assert found.single_s == pytest.approx(
        8 * sum(layer.forward.median_s + layer.backward.median_s for layer in measured.layers)
    )
    assert found.step_s >= found.single_s / 4


def test_the_same_request_gives_the_same_plan():
    measured = random_profile(11, 24, memory=True)
    first, second = (plan(measured, 3, memory_bytes=10**6) for _ in range(2))
    assert dataclasses.replace(first, solver_s=0.0) == dataclasses.replace(second, solver_s=0.0)


def test_times_of_zero_are_planned():
    found = plan(profile([0.0] * 4), 2)
    assert (found.objective_s, found.gap, found.status) == (0, 0, "optimal")


def test_one_layer_and_no_edges():
    assert plan(profile([1.0]), 1).stages[0].layers == ("l0",)
    found = plan(profile([1.0, 2.0, 3.0], {}), 3)
    assert sorted(len(stage.layers) for stage in found.stages) == [1, 1, 1]


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.integers(4, 12))
def test_more_memory_is_never_worse(seed, count):
    measured = random_profile(seed, count, memory=True)
    free = plan(measured, 2, 4)
    peak = max(stage.memory.total_bytes for stage in free.stages)
    ample = plan(measured, 2, 4, memory_bytes=int(1.2 * peak))
    assert ample.objective_s == pytest.approx(free.objective_s)


# ---------------------------------------------------------------- schedules


@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipev"]
)
def test_every_schedule_can_be_planned(schedule):
    found = plan(random_profile(5, 12, memory=True), 4, schedule=schedule, memory_bytes=10**6)
    assert found.bound_s <= found.objective_s
    ranks = {stage.rank for stage in found.stages}
    assert ranks == set(range(4 if schedule in ("gpipe", "1f1b") else 2))
    assert found.step_s >= found.single_s / len(ranks)
    assert all(0 <= stage.idle < 1 for stage in found.stages)


def test_memory_counts_all_stages_of_a_rank():
    measured = profile([1.0] * 8, param_bytes=[100] * 8)
    found = plan(measured, 4, schedule="interleaved", optimizer="sgd", memory_bytes=900)
    for rank in range(2):
        used = sum(s.memory.total_bytes for s in found.stages if s.rank == rank)
        assert used <= 900


def test_schedule_rules_are_refused_before_solving():
    with pytest.raises(UsageError, match="1f1b cannot run 4 stages with 2"):
        plan(profile([1.0] * 8), 4, 2)


def test_inference_is_planned_without_backward():
    found = plan(profile([1.0] * 4, training=False), 2, schedule="gpipe")
    assert all(stage.backward_s == 0 for stage in found.stages)
    assert found.step_s == pytest.approx(2 * (8 + 1))


# ---------------------------------------------------------------- wishes


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


def test_unknown_optimizer():
    with pytest.raises(UsageError, match="adamax"):
        plan(profile([1.0] * 2), 2, optimizer="adamax")


# ---------------------------------------------------------------- what does not fit


def test_more_stages_than_layers():
    with pytest.raises(InfeasibleError) as caught:
        plan(profile([1.0] * 3), 4)
    assert "4 stages" in caught.value.message
    assert "3 layers" in caught.value.cause
    assert caught.value.exit_code == ExitCode.INFEASIBLE


def test_a_layer_that_is_too_large_is_named_with_what_is_missing():
    measured = profile([1.0] * 3, param_bytes=[10, 2**20, 10])
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, 2, optimizer="sgd", memory_bytes=2**20)
    assert "l1 alone needs 2.00 MiB, 1.00 MiB more" in caught.value.cause


def test_the_smallest_change_that_fits_is_told():
    measured = profile([1.0] * 8, saved_bytes=[1000] * 8, param_bytes=[100] * 8)
    with pytest.raises(InfeasibleError) as caught:
        plan(measured, 2, 4, schedule="gpipe", optimizer="sgd", memory_bytes=15_000)
    assert "--schedule 1f1b" in caught.value.hint
    assert "--recompute auto" in caught.value.hint
    assert "--stages 3" in caught.value.hint
    assert "devices of 16.4 KiB" in caught.value.hint
    assert "micro-batches in flight" in caught.value.cause
    assert plan(measured, 2, 4, optimizer="sgd", memory_bytes=15_000).stages


def test_recomputation_makes_it_fit():
    measured = profile([1.0, 2.0, 3.0, 1.0], saved_bytes=[1000] * 4)
    with pytest.raises(InfeasibleError):
        plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000)
    found = plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000, recompute="auto")
    assert all(stage.memory.total_bytes <= 6_000 for stage in found.stages)
    assert any(stage.recompute for stage in found.stages)
    assert "by whole stages" in " ".join(found.notes)
    everything = plan(measured, 2, 4, schedule="gpipe", memory_bytes=6_000, recompute="all")
    assert all(stage.recompute == stage.layers for stage in everything.stages)
    assert found.objective_s <= everything.objective_s * (1 + 1e-9)


# ---------------------------------------------------------------- remarks


def test_a_dominant_layer_is_remarked_on():
    found = plan(profile([1.0, 1.0, 6.0, 1.0, 1.0]), 4)
    assert "layer l2 alone is 60 % of the total: no plan beats 1.67×" in found.notes


def test_slow_links_and_large_bubbles_are_remarked_on():
    found = plan(profile([1.0] * 4, {(0, 1): 9, (1, 2): 9, (2, 3): 9}), 4, 4, link_bytes_per_s=9.0)
    text = " ".join(found.notes)
    assert "a faster link would help" in text
    assert "with 8 micro-batches it would be 27 %" in text


# ---------------------------------------------------------------- clusters


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


# ---------------------------------------------------------------- start-up


def test_planning_needs_no_torch():
    code = (
        "import sys; from autosplit import planner; from autosplit.types import PlanRequest\n"
        "from tests.builders import profile\n"
        "planner.plan(profile([1.0] * 40), PlanRequest(4, 8))\n"
        "print([name for name in ('torch', 'networkx', 'pulp') if name in sys.modules])"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(__file__).resolve().parents[1],
        check=True,
    )
    assert run.stdout.strip() == "[]"
