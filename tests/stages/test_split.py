"""Stages compute what the program computes, and refuse where they could not."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit.errors import AutosplitError
from autosplit.program import (
    InputSpec,
    ModuleSpec,
    Node,
    Program,
    Ref,
    StateSpec,
    TensorSpec,
    Tree,
)
from autosplit.serialize import from_data, to_data
from autosplit.stages import Routing
from autosplit.stages import split as split_or_rebuild
from tests.stages.symbolic import STATE_NAMES, Step, assert_stages_compute_the_same, program_of

split = partial(split_or_rebuild, again=False)
"""What is made again has tests of its own."""

steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(["op", "op", "op", "view", "write_"]),
        st.lists(st.integers(0, 30), min_size=1, max_size=3).map(tuple),
        st.lists(st.integers(0, len(STATE_NAMES) - 1), max_size=2).map(tuple),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@st.composite
def cut_programs(draw):
    """A random program, and stages that respect its edges (not always its writes)."""
    program = program_of(
        draw(st.integers(1, 3)), draw(steps), draw(st.lists(st.integers(0, 30), min_size=1))
    )
    count = draw(st.integers(1, 4))
    stage_of = {}
    in_order = draw(st.booleans())
    latest = 0
    for node in program.operations:
        earliest = max([stage_of[n] for n in node.inputs() if n in stage_of], default=0)
        earliest = max(earliest, latest if in_order else 0)
        step = draw(st.sampled_from([0, 0, 0, 1, 2]))
        stage_of[node.name] = latest = min(earliest + step, count - 1)
    return program, stage_of, count


@settings(max_examples=400, deadline=None)
@given(cut_programs())
def test_stages_compute_what_the_program_computes(case):
    program, stage_of, count = case
    try:
        specs, routing = split(program, stage_of, count)
    except AutosplitError:
        # The stages respect the edges, so that only a write can be in the way.
        assert any(node.mutates for node in program.nodes)
        return
    assert_stages_compute_the_same(program, specs, routing)


@settings(max_examples=200, deadline=None)
@given(cut_programs())
def test_routing_is_consistent(case):
    program, stage_of, count = case
    try:
        specs, routing = split(program, stage_of, count)
    except AutosplitError:
        return
    placed = [name for spec in specs for name in spec.nodes]
    assert len(placed) == len(set(placed))
    for spec, route in zip(specs, routing.stages, strict=True):
        assert (spec.take, spec.give, spec.clone) == (route.take, route.give, route.clone)
        assert set(spec.clone) <= set(spec.take)
        inside = set(spec.take)
        for name in spec.nodes:
            assert stage_of[name] == spec.index
            node = program.node[name]
            assert {s for s in node.inputs() if program.node[s].op != "state"} <= inside
            inside.add(name)
        assert set(spec.give) <= inside
        for symbol, value, dim in spec.sizes:
            assert value in spec.take
            assert program.node[value].value.shape[dim] == symbol
    known = {value.name for value in routing.values}
    assert {n for cut in routing.cuts for n in cut} <= known
    inputs = {spec.name for spec in program.inputs}
    for before, after in zip(routing.cuts, routing.cuts[1:], strict=False):
        given = {n for route in routing.stages for n in route.give}
        assert set(after) - set(before) <= given
    for spec in specs[1:]:
        assert set(spec.take) <= set(routing.cuts[spec.index - 1]) | inputs
    assert from_data(Routing, to_data(routing)) == routing


@settings(max_examples=100, deadline=None)
@given(cut_programs())
def test_every_state_is_held_and_copies_are_declared(case):
    program, stage_of, count = case
    try:
        specs, routing = split(program, stage_of, count)
    except AutosplitError:
        return
    holders = {}
    for spec in specs:
        for name in spec.state:
            holders.setdefault(program.state[name].fqn, set()).add(spec.index)
    persistent = {state.fqn for state in program.states if state.persistent}
    assert persistent <= set(holders)
    declared = {s.name: s for s in (*routing.shared, *routing.replicated)}
    assert set(declared) == {name for name, stages in holders.items() if len(stages) > 1}
    for name, shared in declared.items():
        assert {stage for stage, _ in shared.holders} == holders[name]
        assert all(held in specs[stage].state for stage, held in shared.holders)
        assert (shared in routing.shared) == program.state[name].requires_grad
    assert routing.unused == tuple(
        s.fqn for s in program.states if s.persistent and not _used(program, specs, s)
    )
    assert routing.aliases == (("tied", "w"),)
    assert set(routing.unused) <= set(specs[0].state)


def _used(program, specs, state):
    live = {name for spec in specs for name in spec.nodes}
    return any(
        program.node[source].op == "state" and program.state[program.node[source].target] == state
        for name in live
        for source in program.node[name].inputs()
    )


# ---------------------------------------------------------------- by hand


def chain(*steps, outputs, inputs=1):
    return program_of(inputs, list(steps), outputs)


def in_order(program, *stages):
    return dict(zip((node.name for node in program.operations), stages, strict=True))


def test_dead_operations_are_dropped_and_writes_kept():
    program = chain(
        Step("op", (0,)), Step("op", (1,)), Step("write_", (1,)), Step("op", (1,)), outputs=[4]
    )
    specs, _ = split(program, in_order(program, 0, 0, 0, 0), 1)
    assert specs[0].nodes == ("n0", "n2", "n3")


def test_inputs_are_looked_up_where_they_are_used():
    program = chain(Step("op", (0,)), Step("op", (2, 1)), outputs=[3], inputs=2)
    specs, routing = split(program, in_order(program, 0, 1), 2)
    assert routing.cuts == (("n0",),)
    assert specs[1].take == ("x1", "n0")


def test_an_input_that_was_written_to_is_sent():
    program = chain(Step("write_", (0,)), Step("op", (0,)), outputs=[2])
    specs, routing = split(program, in_order(program, 0, 1), 2)
    assert specs[0].clone == ("x0",)
    assert specs[0].give == ("x0",)
    assert routing.cuts == (("x0",),)


def test_an_input_written_to_in_the_last_stage_is_given_as_output():
    program = chain(Step("op", (0,)), Step("write_", (0,)), outputs=[0])
    specs, routing = split(program, in_order(program, 0, 1), 2)
    assert specs[1].give == ("x0",)
    assert routing.cuts == ((),)


def test_values_pass_stages_that_do_not_use_them():
    program = chain(Step("op", (0,)), Step("op", (1,)), Step("op", (2, 1)), outputs=[3])
    specs, routing = split(program, in_order(program, 0, 1, 2), 3)
    assert routing.cuts == (("n0",), ("n0", "n1"))
    assert specs[1].take == ("n0",)
    assert specs[1].give == ("n1",)


def test_a_size_can_be_the_only_use_of_an_input():
    program = chain(Step("op", (0,)), Step("op", (1,), sized=True), outputs=[2])
    nodes = tuple(
        Node(n.name, n.op, n.target, n.args, value=TensorSpec((8,), "float32"))
        if n.name == "n0"
        else n
        for n in program.nodes
    )
    program = Program(**{**vars_of(program), "nodes": nodes})
    specs, routing = split(program, in_order(program, 0, 1), 2)
    assert specs[1].sizes == (("batch", "x0", 0),)
    assert specs[1].take == ("x0", "n0")
    assert routing.cuts == (("n0",),)


def vars_of(program):
    return {name: getattr(program, name) for name in Program.__dataclass_fields__}


def test_two_names_of_one_memory_do_not_cross_before_a_write():
    program = chain(
        Step("op", (0,)), Step("view", (1,)), Step("write_", (2,)), Step("op", (1, 2)), outputs=[4]
    )
    with pytest.raises(AutosplitError, match="'n0' and 'n1' share memory, and 'n2' in stage 1"):
        split(program, in_order(program, 0, 0, 1, 1), 2)
    split(program, in_order(program, 0, 1, 1, 1), 2)
    split(program, in_order(program, 0, 0, 0, 1), 2)


@pytest.mark.parametrize(
    ("stages", "word"), [((0, 1, 0), "before"), ((0, 0, 1), "after")], ids=["before", "after"]
)
def test_a_cut_does_not_change_the_order_of_read_and_write(stages, word):
    if word == "before":
        program = chain(Step("op", (0,)), Step("op", (1,)), Step("write_", (1,)), outputs=[2, 3])
    else:
        program = chain(Step("op", (0,)), Step("write_", (1,)), Step("op", (1,)), outputs=[2, 3])
        stages = (0, 1, 0)
    with pytest.raises(AutosplitError, match=f"reads 'n0' {word}"):
        split(program, in_order(program, *stages), 2)


def test_backward_edges_and_missing_stages_are_refused():
    program = chain(Step("op", (0,)), Step("op", (1,)), outputs=[2])
    with pytest.raises(AutosplitError, match="reads 'n0' of stage 1"):
        split(program, {"n0": 1, "n1": 0}, 2)
    with pytest.raises(AutosplitError, match="'n1' has no stage"):
        split(program, {"n0": 0}, 2)
    with pytest.raises(AutosplitError, match="has no stage among 2"):
        split(program, {"n0": 0, "n1": 2}, 2)


# ---------------------------------------------------------------- modules, buffers, tuples


def with_modules(nodes, states, modules=(), output="y"):
    value = TensorSpec(("batch",), "float32")
    return Program(
        nodes=(Node("x", "input", "x", value=value), *nodes),
        calls=(),
        modules=modules,
        states=states,
        symbols=(),
        inputs=(InputSpec("x", ("args", 0), 0),),
        input_tree=Tree("tuple", items=(Tree("tuple", items=(Tree("value", "x"),)), Tree("dict"))),
        output_tree=Tree("value", output),
    )


VALUE = TensorSpec(("batch",), "float32")


def norm_twice(training_state=True):
    modules = (
        ModuleSpec("", "M", "m:M", leaf=False, children=("bn",)),
        ModuleSpec(
            "bn",
            "BatchNorm1d",
            "torch.nn.BatchNorm1d",
            leaf=True,
            state=("weight", "mean"),
            training_state=training_state,
        ),
    )
    states = (
        StateSpec("bn.weight", "parameter", (2,), "float32", requires_grad=True),
        StateSpec("bn.mean", "buffer", (2,), "float32"),
    )
    nodes = (
        Node("a", "module", "bn", (Ref("x"),), value=VALUE),
        Node("y", "module", "bn", (Ref("a"),), value=VALUE),
    )
    return with_modules(nodes, states, modules)


def test_a_buffer_written_in_one_stage_and_used_in_another_is_refused():
    program = norm_twice()
    with pytest.raises(AutosplitError, match=r"'bn.mean' is written .* used by stages 0, 1"):
        split(program, {"a": 0, "y": 1}, 2)
    specs, _ = split(program, {"a": 0, "y": 0}, 2)
    assert specs[0].state == ("bn.weight", "bn.mean")
    assert specs[1].nodes == ()


def test_an_unread_dropout_still_draws():
    root = ModuleSpec("", "M", "m:M", leaf=False, children=("drop",))
    drop = ModuleSpec("drop", "Dropout", "torch.nn.Dropout", leaf=True, random=True)
    nodes = (
        Node("unread", "module", "drop", (Ref("x"),), value=VALUE),
        Node("y", "function", "torch.neg", (Ref("x"),), value=VALUE),
    )
    specs, _ = split(with_modules(nodes, (), (root, drop)), {"unread": 0, "y": 0}, 1)
    assert specs[0].nodes == ("unread", "y")


def test_a_module_in_two_stages_shares_its_parameters():
    _, routing = split(norm_twice(training_state=False), {"a": 0, "y": 1}, 2)
    assert [s.name for s in routing.shared] == ["bn.weight"]
    assert [s.name for s in routing.replicated] == ["bn.mean"]
    assert routing.shared[0].holders == ((0, "bn.weight"), (1, "bn.weight"))


def test_a_write_to_a_parameter_is_refused():
    states = (StateSpec("w", "parameter", (2,), "float32", requires_grad=True),)
    nodes = (
        Node("w_", "state", "w", value=VALUE),
        Node("y", "function", "torch.add", (Ref("x"), Ref("w_")), value=VALUE, writes_state=("w",)),
    )
    with pytest.raises(AutosplitError, match="writes to parameter 'w'"):
        split(with_modules(nodes, states), {"y": 0}, 1)


def test_a_write_through_a_view_that_was_sent_is_refused():
    states = (StateSpec("mean", "buffer", (2,), "float32"),)
    nodes = (
        Node("mean_", "state", "mean", value=VALUE),
        Node("view", "function", "torch.Tensor.view", (Ref("mean_"), 2), value=VALUE),
        Node(
            "y",
            "function",
            "torch.Tensor.add_",
            (Ref("view"), Ref("x")),
            value=VALUE,
            mutates=("view",),
            writes_state=("mean",),
        ),
    )
    program = with_modules(nodes, states)
    with pytest.raises(AutosplitError, match=r"'mean' is written .* used by stages 0, 1"):
        split(program, {"view": 0, "y": 1}, 2)
    split(program, {"view": 0, "y": 0}, 1)


def test_returned_state_is_refused():
    states = (StateSpec("w", "buffer", (2,), "float32"),)
    nodes = (Node("w_", "state", "w", value=VALUE),)
    with pytest.raises(AutosplitError, match="returns its own buffer 'w'"):
        split(with_modules(nodes, states, output="w_"), {}, 1)


def test_elements_of_a_tuple_stay_with_the_call():
    nodes = (
        Node("t", "function", "torch.chunk", (Ref("x"), 2), value=(VALUE, VALUE)),
        Node("e", "function", "operator.getitem", (Ref("t"), 1), value=VALUE),
        Node("y", "function", "torch.relu", (Ref("e"),), value=VALUE),
    )
    specs, routing = split(with_modules(nodes, ()), {"t": 0, "e": 1, "y": 1}, 2)
    assert specs[0].nodes == ("t", "e")
    assert routing.cuts == (("e",),)


def test_a_tuple_does_not_cross():
    nodes = (
        Node("t", "function", "torch.chunk", (Ref("x"), 2), value=(VALUE, VALUE)),
        Node("y", "function", "torch.cat", (Ref("t"),), value=VALUE),
    )
    with pytest.raises(AutosplitError, match="'t' in stage 0 is not a tensor"):
        split(with_modules(nodes, ()), {"t": 0, "y": 1}, 2)
