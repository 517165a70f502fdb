"""Rounds in which pairs do not meet, and clusters that say once what is alike."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autosplit import cluster
from autosplit.profilers.topology import (
    ALIKE,
    Member,
    alike,
    both_ways,
    cluster_of,
    rounds,
    tolerance,
    typical,
)
from autosplit.types import LinkSpeed

FAST, SLOW = LinkSpeed(1e11, 5e-6), LinkSpeed(1e9, 5e-5)


def members(*nodes, kind="x", memory=2**30):
    return [Member(node, kind, memory) for node in nodes]


def links(nodes, across=SLOW, inside=FAST, **own):
    found = {
        pair: inside if nodes[pair[0]] == nodes[pair[1]] else across
        for pair in combinations(range(len(nodes)), 2)
    }
    return {**found, **{tuple(map(int, key[1:].split("_"))): each for key, each in own.items()}}


@given(st.lists(st.sampled_from("abcde"), max_size=12))
def test_all_pairs_are_measured_and_none_beside_another_of_its_node(nodes):
    found = rounds(nodes)
    met = [pair for each in found for pair in each]
    assert sorted(map(sorted, met)) == [list(p) for p in combinations(range(len(nodes)), 2)]
    for each in found:
        busy = [node for a, b in each for node in {nodes[a], nodes[b]}]
        assert len(busy) == len(set(busy))


def test_nodes_meet_side_by_side():
    assert len(rounds("abcdefgh")) == 7
    assert all(len(each) == 4 for each in rounds("abcdefgh"))
    assert len(rounds("aaaabbbb")) == 6 + 16


def test_one_node_has_one_link():
    nodes = "aaaa"
    found = cluster_of(members(*nodes), links(nodes))
    assert (found.default, found.within_node, found.links) == (FAST, None, ())
    assert [device.name for device in found.devices] == ["x-0", "x-1", "x-2", "x-3"]


def test_nodes_and_what_joins_them():
    nodes = "aabb"
    found = cluster_of(members(*nodes), links(nodes))
    assert (found.default, found.within_node, found.links) == (SLOW, FAST, ())


def test_exceptions_stand_for_nodes_then_for_devices():
    nodes = "aabbcc"
    quick = LinkSpeed(5e9, 5e-5)
    slow_nodes = {f"p{a}_{b}": quick for a in (0, 1) for b in (4, 5)}
    given_links = links(nodes, **slow_nodes, p2_3=SLOW)
    found = cluster_of(members(*nodes), given_links)
    assert {frozenset(link.ends) for link in found.links} == {frozenset("ac"), frozenset("b")}
    for (a, b), speed in given_links.items():
        assert found.link(found.devices[a], found.devices[b]) == speed
    odd = cluster_of(members(*nodes), links(nodes, p0_5=quick))
    assert [link.ends for link in odd.links] == [("x-0", "x-5")]


def test_what_differs_a_little_is_one():
    speeds = [LinkSpeed(rate, 1e-5) for rate in (1.0e9, 1.05e9, 1.1e9, 3e9)]
    assert typical(speeds) == LinkSpeed(1.05e9, 1e-5)
    assert alike(speeds[0], speeds[2])
    assert not alike(speeds[0], speeds[3])
    assert not alike(LinkSpeed(1e11, 1e-6), LinkSpeed(1e11, 1e-5))


def test_the_latency_of_a_slow_link_does_not_count():
    assert alike(LinkSpeed(1e7, 1e-6), LinkSpeed(1e7, 1e-4))


def test_links_are_told_apart_no_finer_than_they_are_measured():
    quiet, busy = (FAST, FAST), (LinkSpeed(1e9), LinkSpeed(2e9))
    assert tolerance([quiet, quiet, busy]) == ALIKE
    assert tolerance([busy, busy, quiet]) == pytest.approx(2.0)
    assert tolerance([]) == ALIKE
    odd = links("aaa", inside=LinkSpeed(1e9), p0_1=LinkSpeed(1.5e9))
    assert len(cluster_of(members(*"aaa"), odd).links) == 1
    assert not cluster_of(members(*"aaa"), odd, 2.0).links


def test_both_ways_are_taken_together():
    found = both_ways(LinkSpeed(1e9, 1e-5), LinkSpeed(3e9, 3e-5))
    assert found.bytes_per_s == pytest.approx(1.5e9)
    assert found.latency_s == pytest.approx(2e-5)


def test_speed_is_against_the_slowest_kind():
    ranks = [Member("a", "t4", 2**34 + 5, 2e12), Member("a", "t4", 2**34, 4e12)]
    ranks.append(Member("b", "h100", None, 31.234e12))
    found = cluster_of(ranks, links("aab"))
    assert [device.speed for device in found.devices] == [1.0, 1.0, 10.4]
    assert [device.memory_bytes for device in found.devices] == [2**34, 2**34, None]


@given(
    st.lists(st.sampled_from("ab"), min_size=1, max_size=6),
    st.data(),
)
def test_every_pair_reads_back_much_as_it_was_measured(nodes, data):
    rates, delays = st.floats(1e6, 1e12), st.floats(1e-7, 1e-2)
    speeds = st.lists(st.builds(LinkSpeed, rates, delays), min_size=3, max_size=3)
    drawn = st.sampled_from(data.draw(speeds))
    measured = {pair: data.draw(drawn) for pair in combinations(range(len(nodes)), 2)}
    ranks = [Member(node, data.draw(st.sampled_from("xy")), 10**9, 1e9) for node in nodes]
    found = cluster_of(ranks, measured)
    assert cluster.parse(cluster.to_toml(found)) == found
    for (a, b), speed in measured.items():
        said = found.link(found.devices[a], found.devices[b])
        # Three digits may lie on the other side of the limit.
        assert alike(said, LinkSpeed(speed.bytes_per_s, speed.latency_s)) or alike(
            said, typical([speed])
        )


def test_a_rank_alone_has_no_links():
    found = cluster_of(members("a"), {})
    assert not found.has_links
