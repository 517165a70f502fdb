"""Graph of layers: order, edges, cycles, reachability, layers that stay together."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import graph
from autosplit.errors import DataError
from autosplit.types import LayerProfile, Timing
from tests.builders import profile, random_profile


def random_edges(seed, count):
    rng = random.Random(seed)
    return [(a, b) for a in range(count) for b in range(a + 1, count) if rng.random() < 0.2]


def test_values_become_edges_once():
    built = graph.build(profile([1, 1, 1], {(0, 1, 2): 10, (1, 2): 5}))
    assert built.edges == ((0, 1), (0, 2), (1, 2))
    assert built.predecessors == ((), (0,), (0, 1))
    assert built.successors == ((1, 2), (2,), ())


def test_order_edges_count():
    linked = dataclasses.replace(profile([1, 1, 1], {}), order_edges=(("l0", "l2"),))
    assert graph.build(linked).edges == ((0, 2),)


def test_layers_out_of_order_are_sorted_and_renumbered():
    given_profile = profile([1, 2, 3], {(2, 0): 7, (0, 1): 9})
    built = graph.build(given_profile)
    assert [layer.name for layer in built.layers] == ["l2", "l0", "l1"]
    assert built.edges == ((0, 1), (1, 2))
    assert {(v.name, v.producer, v.consumers) for v in built.values if v.consumers} == {
        ("v_2_0", 0, (1,)),
        ("v_0_1", 1, (2,)),
    }


def test_order_of_the_profile_is_kept_where_it_is_topological():
    built = graph.build(random_profile(3, 30))
    assert [layer.name for layer in built.layers] == [f"l{i}" for i in range(30)]


def test_a_cycle_is_named():
    circular = dataclasses.replace(
        profile([1, 1, 1, 1], {(0, 1): 1, (1, 2): 1, (2, 3): 1}), order_edges=(("l3", "l1"),)
    )
    with pytest.raises(DataError) as caught:
        graph.build(circular)
    assert "circle" in caught.value.message
    walk = caught.value.cause.split(" -> ")
    assert walk[0] == walk[-1]
    assert ["l1", "l2", "l3"] in [walk[turn:-1] + walk[:turn] for turn in range(3)]


def test_an_unlisted_storage_is_refused():
    broken = profile([1, 1])
    layers = (dataclasses.replace(broken.layers[0], saved=(99,)), broken.layers[1])
    with pytest.raises(DataError, match="storage 99"):
        graph.build(dataclasses.replace(broken, layers=layers))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_times_that_cannot_be_are_refused(bad):
    with pytest.raises(DataError, match="median_s"):
        LayerProfile("l0", "", None, "", (), Timing(bad), Timing(1.0))


def test_inference_needs_no_gradients():
    built = graph.build(profile([1, 1], training=False, param_bytes=[4, 4]))
    assert not any(value.needs_grad for value in built.values)
    assert not any(state.trainable for state in built.states)


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 14))
def test_ancestors_and_descendants_are_the_transitive_closure(seed, count):
    built = graph.build(random_profile(seed, count))
    above = [set() for _ in range(count)]
    for before, after in built.edges:
        above[after] |= above[before] | {before}
    assert [set(graph.members(mask)) for mask in built.ancestors] == above
    for node in range(count):
        below = {other for other in range(count) if node in above[other]}
        assert set(graph.members(built.descendants[node])) == below


@settings(deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 12), st.data())
def test_contracted_groups_keep_wishes_and_order(seed, count, data):
    edges = random_edges(seed, count)
    nodes = st.lists(st.integers(0, count - 1), min_size=1, max_size=3)
    together = data.draw(st.lists(nodes, max_size=3))
    groups = graph.contract(count, edges, together)
    assert sorted(node for group in groups for node in group) == list(range(count))
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    for wish in together:
        assert len({group_of[node] for node in wish}) == 1
    assert all(group_of[a] <= group_of[b] for a, b in edges)
    if not together:
        assert groups == tuple((node,) for node in range(count))


def test_a_layer_between_two_that_stay_together_joins_them():
    assert graph.contract(4, [(0, 1), (1, 2), (2, 3)], [[0, 2]]) == ((0, 1, 2), (3,))
    assert graph.contract(2, [(0, 1)], [[]]) == ((0,), (1,))


def test_networkx_view_adds_up_the_bytes_of_an_edge():
    built = graph.build(profile([1, 1, 1], {(0, 1): 5, (0, 2, 1): 7}))
    view = built.to_networkx()
    assert dict(view.edges) == {
        ("l0", "l1"): {"nbytes": 12},
        ("l0", "l2"): {"nbytes": 7},
    }
