"""Stage time and memory against numbers worked out by hand, and against the solvers' view."""

import dataclasses
import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import chain, graph, planner
from autosplit.cost.times import LayerTimes
from autosplit.solvers.evaluate import evaluate
from autosplit.types import PlanRequest, ValueProfile
from tests.builders import profile, random_profile


def model(measured, stages, microbatches=8, **request):
    return planner.cost_model(graph.build(measured), PlanRequest(stages, microbatches, **request))


# ---------------------------------------------------------------- time


def test_times_are_sums():
    cost = model(profile([1, 2, 3, 4]), 2).evaluate((0, 0, 0, 1))
    assert [stage.forward_s for stage in cost.stages] == [6, 4]
    assert [stage.backward_s for stage in cost.stages] == [12, 8]
    assert cost.bottleneck_s == 18
    assert cost.objective_s == 7 * 18 + 18 + 12


def test_entering_a_layer_is_paid_once_per_stage():
    cost = model(profile([1, 2, 3, 4], offset_s=0.3), 2).evaluate((0, 0, 0, 1))
    totals = [stage.forward_s + stage.backward_s for stage in cost.stages]
    assert totals == pytest.approx([18 - 2 * 0.3, 12])


def test_the_whole_model_in_one_stage_is_the_single_time():
    measured = model(profile([1, 2, 3], offset_s=0.5), 1)
    cost = measured.evaluate((0, 0, 0))
    assert cost.stages[0].forward_s + cost.stages[0].backward_s == pytest.approx(18 - 2 * 0.5)
    assert measured.single_s == pytest.approx(17)


def test_the_weight_gradient_is_a_part_of_the_backward_of_its_stage():
    measured = profile([1, 2, 3], offset_s=0.5)
    layers = tuple(
        dataclasses.replace(layer, weight_gradient_s=layer.forward.median_s)
        for layer in measured.layers
    )
    stages = model(dataclasses.replace(measured, layers=layers), 2).evaluate((0, 0, 1)).stages
    # A third of each layer, of which entering it has been taken.
    assert [stage.weight_gradient_s for stage in stages] == pytest.approx(
        [(9 - 2 * 0.5) / 3, (9 - 0.5) / 3]
    )
    unknown = model(measured, 2).evaluate((0, 0, 1))
    assert not any(stage.weight_gradient_s for stage in unknown.stages)


def test_inference_has_no_backward():
    cost = model(profile([1, 2], training=False), 2).evaluate((0, 1))
    assert [stage.backward_s for stage in cost.stages] == [0, 0]
    assert cost.boundaries[0].backward_bytes == 0


# ---------------------------------------------------------------- boundaries


def test_a_value_crosses_every_boundary_to_its_last_reader_once():
    measured = profile([1] * 4, {(0, 1, 3): 100, (1, 2): 10, (2, 3): 10})
    cost = model(measured, 4, link_bytes_per_s=10.0).evaluate((0, 1, 2, 3))
    assert [boundary.forward_bytes for boundary in cost.boundaries] == [100, 110, 110]
    assert [boundary.forward_s for boundary in cost.boundaries] == [10, 11, 11]
    assert [stage.load_s for stage in cost.stages] == [23, 45, 47, 25]


def test_overlapped_transfers_count_only_when_they_are_longer():
    measured = profile([1] * 2, {(0, 1): 100})
    slow = model(measured, 2, link_bytes_per_s=10.0, overlap=True).evaluate((0, 1))
    assert [stage.load_s for stage in slow.stages] == [20, 20]
    fast = model(measured, 2, link_bytes_per_s=1e3, overlap=True).evaluate((0, 1))
    assert [stage.load_s for stage in fast.stages] == [3, 3]


def test_latency_is_paid_for_every_tensor_and_gradient():
    measured = profile([1] * 2, {(0, 1): 100})
    frozen = dataclasses.replace(
        measured, values=(dataclasses.replace(measured.values[0], needs_grad=False),)
    )
    assert model(measured, 2, latency_s=0.5).evaluate((0, 1)).boundaries[0].total_s == 1.0
    assert model(frozen, 2, latency_s=0.5).evaluate((0, 1)).boundaries[0].total_s == 0.5


def test_an_early_output_travels_to_the_end():
    measured = profile([1] * 3, {(0, 1): 10, (1, 2): 10}, outputs=(0, 2))
    cost = model(measured, 3).evaluate((0, 1, 2))
    assert [boundary.forward_bytes for boundary in cost.boundaries] == [10, 20]


def test_model_inputs_do_not_cross():
    measured = profile([1] * 2)
    ids = ValueProfile("ids", None, ("l0", "l1"), 1000, (1000,), "uint8", False)
    fed = dataclasses.replace(measured, values=(*measured.values, ids))
    cost = model(fed, 2).evaluate((0, 1))
    assert cost.boundaries[0].forward_bytes == 1
    assert [stage.memory.boundary_bytes for stage in cost.stages] == [8 * (1000 + 1)] * 2


def again(measured, *names):
    """Return a profile of which later stages make some values themselves."""
    return dataclasses.replace(
        measured,
        values=tuple(
            dataclasses.replace(value, made_again=True, needs_grad=False)
            if value.name in names
            else value
            for value in measured.values
        ),
    )


def test_what_is_made_again_does_not_cross():
    measured = again(profile([1] * 3, {(0, 1, 2): 100, (0, 1): 7, (1, 2): 10}), "v_0_1_2")
    cost = model(measured, 3).evaluate((0, 1, 2))
    assert [boundary.forward_bytes for boundary in cost.boundaries] == [7, 10]
    assert cost.boundaries[1].values == ("v_1_2",)


def test_a_returned_table_travels_to_the_end_all_the_same():
    measured = again(profile([1] * 3, {(0, 1): 10, (1, 2): 1}, outputs=(0,)), "v_0_1")
    cost = model(measured, 3).evaluate((0, 1, 2))
    assert [boundary.forward_bytes for boundary in cost.boundaries] == [10, 11]


def test_a_stage_keeps_the_table_that_it_made_again():
    measured = profile([1] * 2, {(0, 1): 10}, saved_values=True)
    sent, made = (model(each, 2).evaluate((0, 1)) for each in (measured, again(measured, "v_0_1")))
    assert sent.stages[1].memory.boundary_bytes == 8 * 10
    assert made.stages[1].memory.boundary_bytes == 0
    assert made.stages[1].activation_bytes == sent.stages[1].activation_bytes + 10


def test_inside_a_rank_nothing_is_sent():
    measured = profile([1] * 4, {(0, 1): 100, (1, 2): 100, (2, 3): 100})
    cost = model(measured, 4, schedule="zbv", link_bytes_per_s=10.0).evaluate((0, 1, 2, 3))
    assert [boundary.forward_s for boundary in cost.boundaries] == [10, 0, 10]
    assert cost.bottleneck_s == 2 * (3 + 20)


# ---------------------------------------------------------------- memory


def test_state_gradients_and_optimizer():
    measured = profile([1] * 2, param_bytes=[100, 10])
    for optimizer, copies in (("sgd", 0), ("momentum", 1), ("adam", 2), ("adamw", 2)):
        memory = model(measured, 2, optimizer=optimizer).evaluate((0, 1)).stages[0].memory
        assert memory.parameters_bytes == 100
        assert memory.gradients_bytes == 100
        assert memory.optimizer_bytes == 100 * copies


def test_divided_replicas_keep_a_part_and_hold_the_whole_during_a_step():
    measured = profile([1, 1], param_bytes=[1001, 1001])
    whole = model(measured, 2, replicas=2, optimizer="adam").evaluate((0, 1))
    parts = model(measured, 2, replicas=2, optimizer="adam", sharding="fsdp").evaluate((0, 1))
    for before, after in zip(whole.stages, parts.stages, strict=True):
        assert (before.memory.parameters_bytes, after.memory.parameters_bytes) == (1001, 1502)
        assert (before.memory.optimizer_bytes, after.memory.optimizer_bytes) == (2002, 1002)
        assert before.memory.gradients_bytes == after.memory.gradients_bytes == 1001
    assert whole.sync_s == parts.sync_s
    alone = [model(measured, 2, sharding=kind).evaluate((0, 1)) for kind in ("fsdp", "replicate")]
    assert alone[0] == alone[1]


def test_frozen_weights_have_neither_gradient_nor_optimizer_state():
    measured = profile([1] * 2, param_bytes=[100, 10])
    frozen = dataclasses.replace(
        measured,
        states=(dataclasses.replace(measured.states[0], trainable=False), measured.states[1]),
    )
    memory = model(frozen, 2).evaluate((0, 1)).stages[0].memory
    assert (memory.parameters_bytes, memory.gradients_bytes, memory.optimizer_bytes) == (100, 0, 0)


def test_tied_parameters_count_on_every_stage_that_uses_them():
    measured = profile([1] * 3, shared=[(50, (0, 2))])
    apart = model(measured, 3).evaluate((0, 1, 2))
    assert [stage.memory.parameters_bytes for stage in apart.stages] == [50, 0, 50]
    near = model(measured, 2).evaluate((0, 0, 0))
    assert near.stages[0].memory.parameters_bytes == 50


def test_tied_parameters_are_summed_after_the_step():
    measured = profile([1] * 3, shared=[(50, (0, 2))])
    linked = model(measured, 3, link_bytes_per_s=10.0, latency_s=1.0)
    assert linked.evaluate((0, 1, 2)).sync_s == pytest.approx(2 * (25 / 10 + 1))


def test_unused_state_lies_on_the_first_stage():
    measured = profile([1] * 2, param_bytes=[0, 7])
    idle = dataclasses.replace(measured.states[0], name="idle", nbytes=1000, layers=())
    carried = dataclasses.replace(measured, states=(*measured.states, idle))
    cost = model(carried, 2).evaluate((0, 1))
    assert [stage.memory.parameters_bytes for stage in cost.stages] == [1000, 7]


@pytest.mark.parametrize(("schedule", "held"), [("1f1b", (3, 2, 1)), ("gpipe", (8, 8, 8))])
def test_activations_follow_the_schedule(schedule, held):
    measured = profile([1] * 3, saved_bytes=[100, 10, 1], workspace_bytes=[5, 6, 7])
    cost = model(measured, 3, schedule=schedule).evaluate((0, 1, 2))
    # One byte on top: what was sent is kept until backward, as the loss keeps the output.
    expected = [held[0] * 101, held[1] * 11, held[2] * 2]
    assert [stage.memory.activations_bytes for stage in cost.stages] == expected
    assert [stage.memory.workspace_bytes for stage in cost.stages] == [5, 6, 7]


def shared_storage():
    """l0 makes a tensor of 64 bytes that l0, l1 and l2 all keep for backward."""
    measured = profile([1] * 3, {(0, 1, 2): 64, (1, 2): 8}, saved_bytes=[64, 0, 0])
    layers = tuple(dataclasses.replace(layer, saved=(0,)) for layer in measured.layers)
    values = tuple(
        dataclasses.replace(value, storage=0) if value.producer == "l0" else value
        for value in measured.values
    )
    return dataclasses.replace(measured, layers=layers, values=values)


@pytest.mark.parametrize(
    ("kind", "optimizer", "needed"),
    [("cpu", "adam", 200), ("cuda", "adam", 160), ("cpu", "momentum", 0), ("cuda", "adagrad", 320)],
)
def test_the_optimizer_needs_memory_when_activations_are_gone(kind, optimizer, needed):
    measured = profile([1] * 2, saved_bytes=[10, 20], param_bytes=[100, 60])
    device = dataclasses.replace(measured.device, kind=kind)
    measured = dataclasses.replace(measured, device=device)
    cost = model(measured, 1, 1, optimizer=optimizer, memory_bytes=10**6)
    memory = cost.evaluate((0, 0)).stages[0].memory
    assert memory.activations_bytes + memory.workspace_bytes == max(needed, 30 + 1)
    posed = chain.problem(cost, [[0], [1]], cautious=True)
    assert evaluate(posed, (0, 0)).memory_bytes[0] >= memory.total_bytes


def test_a_storage_counts_once_in_a_stage():
    cost = model(shared_storage(), 1, 1).evaluate((0, 0, 0))
    assert cost.stages[0].activation_bytes == 64 + 1


def test_a_received_storage_lies_in_its_receive_buffer():
    cost = model(shared_storage(), 2, schedule="gpipe").evaluate((0, 1, 1))
    assert [stage.activation_bytes for stage in cost.stages] == [64, 1]
    # The receiver keeps every value of a step, the sender every gradient.
    assert [stage.memory.boundary_bytes for stage in cost.stages] == [8 * 64, 8 * 64]


def test_what_is_handed_on_is_copied():
    cost = model(shared_storage(), 3, schedule="gpipe").evaluate((0, 1, 2))
    assert cost.stages[1].activation_bytes == 64 + 8


def test_recomputation_trades_memory_for_time():
    measured = profile([1, 2, 3], saved_bytes=[100, 200, 300])
    plain = model(measured, 1, 1).evaluate((0, 0, 0))
    again = model(measured, 1, 1).evaluate((0, 0, 0), recompute={1})
    assert again.stages[0].backward_s == plain.stages[0].backward_s + 2
    # What goes into the layer is kept instead of what it makes inside.
    assert again.stages[0].activation_bytes == plain.stages[0].activation_bytes - 200 + 1
    assert again.stages[0].memory.workspace_bytes == 200


# ---------------------------------------------------------------- the solvers' view


def random_stages(built, stages, rng):
    """Return random stages along a random topological order, none of them empty."""
    left = set(range(len(built)))
    order = []
    while left:
        ready = [node for node in left if not left.intersection(built.predecessors[node])]
        order.append(rng.choice(sorted(ready)))
        left.remove(order[-1])
    cuts = sorted(rng.sample(range(1, len(order)), stages - 1))
    stage_of = [0] * len(order)
    for stage, (start, end) in enumerate(itertools.pairwise([0, *cuts, len(order)])):
        for node in order[start:end]:
            stage_of[node] = stage
    return stage_of


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(4, 10),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["step", "bottleneck"]),
)
def test_problem_and_cost_model_agree(seed, count, stages, overlap, objective):
    measured = random_profile(seed, count, memory=True)
    tables = random.Random(seed).sample(measured.values, len(measured.values) // 3)
    built = graph.build(again(measured, *(value.name for value in tables)))
    priced = planner.cost_model(
        built,
        PlanRequest(
            stages,
            6,
            memory_bytes=10**6,
            link_bytes_per_s=3.0,
            latency_s=0.25,
            overlap=overlap,
            objective=objective,
        ),
    )
    stage_of = random_stages(built, stages, random.Random(seed))
    problem = chain.problem(priced, [(node,) for node in range(count)])
    theirs = evaluate(problem, stage_of)
    ours = priced.evaluate(stage_of)
    assert not theirs.violations
    assert theirs.objective_s == pytest.approx(ours.objective_s)
    assert theirs.loads_s == pytest.approx([stage.load_s for stage in ours.stages])
    for counted, stage in zip(theirs.memory_bytes, ours.stages, strict=True):
        assert counted <= stage.memory.total_bytes + 1e-6
    problem = chain.problem(priced, [(node,) for node in range(count)], cautious=True)
    careful = evaluate(problem, stage_of)
    for counted, stage in zip(careful.memory_bytes, ours.stages, strict=True):
        assert counted >= stage.memory.total_bytes - 1e-6


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(3, 9))
def test_groups_of_layers_cost_what_their_layers_cost(seed, count):
    built = graph.build(random_profile(seed, count, memory=True))
    priced = planner.cost_model(built, PlanRequest(2, 4, memory_bytes=10**6, link_bytes_per_s=3.0))
    groups = graph.contract(count, built.edges, [[0, count - 1], [1, 1]])
    if len(groups) < 2:
        return
    problem = chain.problem(priced, groups)
    by_group = [0] * (len(groups) - 1) + [1]
    stage_of = [0] * count
    for group, stage in zip(groups, by_group, strict=True):
        for layer in group:
            stage_of[layer] = stage
    assert evaluate(problem, by_group).objective_s == pytest.approx(
        priced.evaluate(stage_of).objective_s
    )


@settings(deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([("1f1b", 2), ("1f1b", 4), ("interleaved", 4), ("zbv", 4)]),
    st.sampled_from(["step", "bottleneck"]),
)
def test_no_plan_is_below_the_even_bound(seed, schedule, objective):
    rng = random.Random(seed)
    measured = random_profile(seed, 7)
    offset_s = rng.choice([0.0, 0.25])
    whole = dataclasses.replace(measured.whole, offset_s=offset_s)
    built = graph.build(dataclasses.replace(measured, whole=whole))
    request = PlanRequest(schedule[1], 4, schedule=schedule[0], objective=objective)
    priced = planner.cost_model(built, request)
    other = LayerTimes(graph.build(random_profile(seed + 1, 7)))
    devices = [
        dataclasses.replace(
            priced.places[0], speed=rng.choice([1.0, 2.0]), times=rng.choice([None, other])
        )
        for _ in range(priced.schedule.ranks)
    ]
    places = tuple(devices[priced.schedule.rank_of(stage)] for stage in range(schedule[1]))
    mixed = dataclasses.replace(priced, places=places)
    for each in (priced, mixed):
        found = each.evaluate(random_stages(built, schedule[1], rng))
        assert each.even_bound_s() <= found.objective_s * (1 + 1e-12)


def test_the_longest_layer_bounds_what_is_shared_evenly():
    assert model(profile([1, 9]), 2, objective="bottleneck").even_bound_s() == 27


def test_no_budget_means_no_memory_in_the_problem():
    priced = model(profile([1] * 3, saved_bytes=[1, 2, 3]), 2)
    problem = chain.problem(priced, [(0,), (1,), (2,)])
    assert problem.budget_bytes == problem.saved_bytes == problem.boundary_factor == ()
    assert math.isinf(priced.places[0].budget_bytes)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.1, 100))
def test_scaling_all_times_scales_the_objective(seed, count, factor):
    measured = random_profile(seed, count)
    scaled = dataclasses.replace(
        measured,
        layers=tuple(
            dataclasses.replace(
                layer,
                forward=dataclasses.replace(
                    layer.forward, median_s=layer.forward.median_s * factor
                ),
                backward=dataclasses.replace(
                    layer.backward, median_s=layer.backward.median_s * factor
                ),
            )
            for layer in measured.layers
        ),
    )
    stage_of = [0] * (count - 1) + [1]
    before = model(measured, 2).evaluate(stage_of).objective_s
    assert model(scaled, 2).evaluate(stage_of).objective_s == pytest.approx(factor * before)
