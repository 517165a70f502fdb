"""Plans of small profiles: proven best, within their constraints, or refused with a reason."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import graph, planner
from autosplit.errors import InfeasibleError, UsageError
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile
from tests.planning import every_plan, plan, stage_of

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
    assert found.bound_s == pytest.approx(best)
    assert found.bound_s <= found.objective_s * (1 + 1e-9)
    # The simulation may put another plan first, which is then not called optimal.
    assert found.stopped in (None, "simulation")
    assert (found.status == "optimal") == (found.stopped is None)
    assert found.gap == pytest.approx(1 - best / found.objective_s)
    assert objective == "step" or found.gap == 0


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
    assert fitting or found is None
    if fitting and found is None:
        # Memory that the solvers leave out can hide every plan that fits; that is no proof.
        with pytest.raises(InfeasibleError, match="without a proof"):
            planner.plan(measured, request)
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


def test_unknown_optimizer():
    with pytest.raises(UsageError, match="adamax"):
        plan(profile([1.0] * 2), 2, optimizer="adamax")


# ---------------------------------------------------------------- remarks


def test_a_dominant_layer_is_remarked_on():
    found = plan(profile([1.0, 1.0, 6.0, 1.0, 1.0]), 4)
    assert "layer l2 alone is 60 % of the total: no plan beats 1.67×" in found.notes


def test_slow_links_and_large_bubbles_are_remarked_on():
    found = plan(profile([1.0] * 4, {(0, 1): 9, (1, 2): 9, (2, 3): 9}), 4, 4, link_bytes_per_s=9.0)
    text = " ".join(found.notes)
    assert "a faster link would help" in text
    assert "with 8 micro-batches it would be 27 %" in text


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
