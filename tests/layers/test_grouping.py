"""Layers of programs: a partition of the live operations into convex groups, in order."""

from __future__ import annotations

import re

import networkx as nx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosplit.layers import Grouping, Work, group
from autosplit.layers.dataflow import dataflow
from autosplit.layers.grouping import LARGEST_SHARE
from autosplit.program import Program, TensorSpec
from tests.layers.programs import Builder, programs

GRANULARITIES = ("op", "layer", "block")
quick = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def operation_graph(program: Program) -> nx.DiGraph:
    flow = dataflow(program)
    graph = nx.DiGraph()
    graph.add_nodes_from(node.name for node in flow.nodes)
    graph.add_edges_from(
        (flow.nodes[a].name, flow.nodes[b].name) for a, b in (*flow.data, *flow.order)
    )
    return graph


def assert_sound(program: Program, grouping: Grouping) -> None:
    graph = operation_graph(program)
    placed = [node for layer in grouping.layers for node in layer.nodes]
    assert sorted(placed) == sorted(graph)
    rank = {layer.name: index for index, layer in enumerate(grouping.layers)}
    assert len(rank) == len(grouping.layers)
    for source, target in graph.edges:
        assert rank[grouping.layer_of[source]] <= rank[grouping.layer_of[target]]
    for layer in grouping.layers:
        positions = [program.position[name] for name in layer.nodes]
        assert positions == sorted(positions)
        assert layer.name
    for before, after in grouping.order:
        assert rank[before] < rank[after]


@given(programs(), st.sampled_from(GRANULARITIES))
@quick
def test_layers_are_a_convex_partition_in_topological_order(
    program: Program, granularity: str
) -> None:
    # A topological order of the quotient exists only if no path leaves a layer and returns.
    assert_sound(program, group(program, granularity=granularity))  # type: ignore[arg-type]


@given(programs())
@quick
def test_what_shares_written_memory_is_not_parted(program: Program) -> None:
    layer_of = group(program, granularity="op").layer_of
    for node in program.operations:
        if node.name not in layer_of:
            continue
        for name in node.mutates:
            if name in layer_of and program.position[name] < program.position[node.name]:
                assert layer_of[name] == layer_of[node.name]


@given(programs(), st.sampled_from(GRANULARITIES))
@quick
def test_tensors_alone_lie_between_layers(program: Program, granularity: str) -> None:
    layer_of = group(program, granularity=granularity).layer_of  # type: ignore[arg-type]
    for node in program.operations:
        if node.name in layer_of and not isinstance(node.value, TensorSpec):
            readers = {layer_of[user] for user in program.users[node.name] if user in layer_of}
            assert readers <= {layer_of[node.name]}


@given(programs())
@quick
def test_all_writers_of_a_buffer_stay_together(program: Program) -> None:
    grouping = group(program)
    writers = [node.name for node in program.operations if node.writes_state]
    assert set(writers) <= set(grouping.layer_of)
    assert len({grouping.layer_of[name] for name in writers}) <= 1


@given(programs())
@quick
def test_what_the_outputs_need_is_live(program: Program) -> None:
    placed = set(group(program).layer_of)
    pending = list(program.outputs)
    while pending:
        node = program.node[pending.pop()]
        if node.op in ("function", "module"):
            assert node.name in placed
        pending.extend(node.inputs())


@given(programs(), st.sampled_from(GRANULARITIES))
@quick
def test_grouping_is_deterministic(program: Program, granularity: str) -> None:
    first = group(program, granularity=granularity)  # type: ignore[arg-type]
    assert group(program, granularity=granularity) == first  # type: ignore[arg-type]


def transformer(blocks: int) -> Program:
    """Blocks of two linears and small operations around them, with a residual stream."""
    build = Builder()
    x = build.linear("embed", build.input("x"), "embed")
    for index in range(blocks):
        call = build.call(f"h.{index}")
        y = build.op(f"norm{index}", "torch.tanh", x, call=call)
        y = build.linear(f"up{index}", y, f"h.{index}.up", call)
        y = build.op(f"act{index}", "torch.nn.functional.gelu", y, call=call)
        y = build.linear(f"down{index}", y, f"h.{index}.down", call)
        x = build.op(f"add{index}", "torch.add", x, y, call=call)
    return build.build(build.linear("head", x, "head"))


def test_weightless_operations_join_the_neighbour_in_their_module() -> None:
    grouping = group(transformer(12))
    assert [layer.name for layer in grouping.layers][:3] == ["embed", "h.0.up", "h.0.down"]
    assert len(grouping.layers) == 26
    assert grouping.layer_of["add3"] == "h.3.down"
    assert {layer.block for layer in grouping.layers} == {None, *(f"h.{i}" for i in range(12))}


def test_what_closes_a_block_never_joins_the_next() -> None:
    grouping = group(transformer(3))
    for index in range(3):
        assert grouping.layer_of[f"add{index}"] == f"h.{index}#3"
        inside = {grouping.layer_of[f"{name}{index}"] for name in ("norm", "up", "down", "add")}
        assert {layer.block for layer in grouping.layers if layer.name in inside} == {f"h.{index}"}


def test_blocks_are_one_layer_each_and_alike() -> None:
    grouping = group(transformer(12), granularity="block")
    names = [layer.name for layer in grouping.layers]
    assert names == ["embed", *(f"h.{i}" for i in range(12)), "head"]
    assert len({layer.structure for layer in grouping.layers[1:-1]}) == 1


def test_structures_see_constants_and_shapes() -> None:
    build = Builder()
    x = build.input("x")
    a = build.op("a", "torch.mul", x, extra=(2.0,))
    b = build.op("b", "torch.mul", a, extra=(2.0,))
    c = build.op("c", "torch.mul", b, extra=(3.0,))
    d = build.op("d", "torch.mul", c, extra=(3,))
    layers = group(build.build(d), granularity="op").layers
    # a reads an input without gradient, b a value with one; c and d differ in the constant.
    assert len({layer.structure for layer in layers}) == 4


def test_a_merge_stops_at_its_share_of_the_step() -> None:
    build = Builder()
    x = build.input("x")
    for index in range(300):
        x = build.op(f"v{index}", "torch.relu", x)
    program = build.build(x)
    work = Work(program)
    grouping = group(program)
    total = sum(work.cost(node) for node in program.operations)
    for layer in grouping.layers:
        share = sum(work.cost(program.node[name]) for name in layer.nodes) / total
        assert share <= LARGEST_SHARE + 1e-9
    assert len(grouping.layers) < 80


def test_measured_cost_takes_the_place_of_the_estimate() -> None:
    program = transformer(12)
    cost = {node.name: 0.0 for node in program.operations} | {"norm3": 1.0}
    assert group(program, cost).layer_of["norm3"] not in {"h.3.up", "h.3.down"}


def test_dead_operations_are_in_no_layer_but_writers_of_live_memory_are() -> None:
    build = Builder()
    x = build.input("x")
    kept = build.op("kept", "torch.relu", x)
    build.op("dead", "torch.relu", x)
    view = build.op("view", "torch.Tensor.view", kept, view_of=kept)
    build.op("fill", "torch.Tensor.zero_", view, view_of=kept, mutates=(kept, view))
    placed = group(build.build(kept)).layer_of
    assert set(placed) == {"kept", "view", "fill"}


def test_a_written_input_orders_its_readers() -> None:
    build = Builder()
    x = build.input("x")
    early = build.linear("early", x, "early")
    late = build.op("late", "torch.Tensor.relu_", x, view_of=x, mutates=(x,))
    after = build.linear("after", late, "after")
    grouping = group(build.build(early, after), granularity="op")
    assert ("early", "relu_") in grouping.order


def test_names_of_second_calls_are_numbered() -> None:
    build = Builder()
    x = build.input("x")
    for index in range(3):
        x = build.linear(f"call{index}", x, "shared")
    names = [layer.name for layer in group(build.build(x)).layers]
    assert names == ["shared", "shared#2", "shared#3"]


def test_names_at_the_root_say_the_operation() -> None:
    build = Builder()
    build.op("v", "torch.nn.functional.softmax", build.input("x"))
    (layer,) = group(build.build("v")).layers
    assert (layer.name, layer.module, layer.block) == ("softmax", "", None)


@pytest.mark.timeout(60)
def test_thousands_of_operations_are_grouped_in_seconds() -> None:
    grouping = group(transformer(1000))
    assert len(grouping.layers) == 2002
    assert all(re.fullmatch(r"embed|head|h\.\d+\.(up|down)", x.name) for x in grouping.layers)


def test_operations_know_the_layer_they_are_a_part_of() -> None:
    program = transformer(12)
    layers = group(program)
    operations = group(program, granularity="op")
    blocks = {layer.name: layer.block for layer in layers.layers}
    assert len(operations.layers) > len(layers.layers)
    for operation in operations.layers:
        assert {layers.layer_of[node] for node in operation.nodes} == {operation.layer}
        assert operation.layer is not None
        assert operation.block == blocks[operation.layer]
    assert all(layer.layer is None for layer in layers.layers)
