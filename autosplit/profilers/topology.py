"""In which order pairs of ranks are measured, and what of the result a cluster has to say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product, zip_longest

from autosplit.types import Cluster, Device, LinkSpeed, PairLink

ALIKE = 1.15
"""Links whose transfers take times within this ratio are written as one."""

_JUDGED_BYTES = (2**16, 2**24)
"""Messages whose times are compared: one that waits for the latency, one for the bandwidth."""

_DIGITS = 3

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Member:
    """What one rank says of its device.

    Parameters
    ----------
    node
        Name of its machine.
    kind
        Name of its hardware.
    memory_bytes
        Memory that is its own; None where the machine does not say.
    flops_per_s
        Rate at which it multiplies matrices; None where that was not measured.
    """

    node: str
    kind: str
    memory_bytes: int | None
    flops_per_s: float | None = None


# ---------------------------------------------------------------- the order of measuring


def rounds(nodes: Sequence[str]) -> list[list[Pair]]:
    """Return all pairs of ranks in rounds whose pairs disturb each other nowhere.

    A node takes part in one pair of a round: what several of its ranks share (bus, network
    card) is measured alone. Among nodes the rounds are those of a round-robin tournament.

    Parameters
    ----------
    nodes
        Node of each rank.
    """
    ranks: dict[str, list[int]] = {}
    for rank, node in enumerate(nodes):
        ranks.setdefault(node, []).append(rank)
    groups = list(ranks.values())
    found = _side_by_side([list(combinations(group, 2)) for group in groups])
    for meeting in _tournament(len(groups)):
        found += _side_by_side([list(product(groups[a], groups[b])) for a, b in meeting])
    return found


def _side_by_side(lists: Sequence[Sequence[Pair]]) -> list[list[Pair]]:
    """Return first the first of every list, then the second, and so on."""
    return [[pair for pair in row if pair is not None] for row in zip_longest(*lists)]


def _tournament(count: int) -> Iterator[list[Pair]]:
    """Yield rounds in which everyone meets one other, until all have met (circle method)."""
    seats = list(range(count + count % 2))
    for _ in seats[1:]:
        half = len(seats) // 2
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(pair), max(pair)) for pair in opposite if max(pair) < count]
        seats.insert(1, seats.pop())


# ---------------------------------------------------------------- what is worth saying


def both_ways(there: LinkSpeed, back: LinkSpeed) -> LinkSpeed:
    """Return the link of equal traffic both ways: the means of the seconds per byte and start."""
    assert there.bytes_per_s is not None
    assert back.bytes_per_s is not None
    s_per_byte = (1 / there.bytes_per_s + 1 / back.bytes_per_s) / 2
    return LinkSpeed(1 / s_per_byte, (there.latency_s + back.latency_s) / 2)


def tolerance(ways: Iterable[tuple[LinkSpeed, LinkSpeed]]) -> float:
    """Return the ratio of times up to which links are one: ``ALIKE``, or what measuring is worth.

    The two ways of a link are mostly alike. Where those of the middle pair are not, because
    something else keeps the machines busy, no smaller difference of two links means anything.
    """
    return max(ALIKE, statistics.median([_ratio(there, back) for there, back in ways] or [1.0]))


def alike(first: LinkSpeed, second: LinkSpeed, within: float = ALIKE) -> bool:
    """Return whether transfers take much the same time on both, up to a ratio."""
    return _ratio(first, second) <= within


def _ratio(first: LinkSpeed, second: LinkSpeed) -> float:
    """Return the larger ratio of the times of a small and a large message."""
    ratios = (_seconds(first, size) / _seconds(second, size) for size in _JUDGED_BYTES)
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def cluster_of(
    members: Sequence[Member], links: Mapping[Pair, LinkSpeed], within: float = ALIKE
) -> Cluster:
    """Return the cluster that ranks and the links between them make up.

    What most links have in common is said once, for all and for those inside of nodes; then of
    pairs of nodes, then of pairs of devices, but only where it differs from what is said already.

    Parameters
    ----------
    members
        The devices by rank.
    links
        Every pair of ranks, the lower first.
    within
        Ratio of times up to which links are one.
    """
    devices = _devices(members)
    inside = {pair: speed for pair, speed in links.items() if _in_one_node(devices, pair)}
    across = {pair: speed for pair, speed in links.items() if pair not in inside}
    if not links:
        return Cluster(devices)
    default = typical([*(across or inside).values()], within)
    node = typical([*inside.values()], within) if across and inside else None
    if node is not None and alike(node, default, within):
        node = None
    found = Cluster(devices, (), node, default)
    found = _with_nodes(found, links, within) if across else found
    return _with_devices(found, links, within)


def typical(speeds: Sequence[LinkSpeed], within: float = ALIKE) -> LinkSpeed:
    """Return the middle of those links that most others are like, with a few digits."""
    classes = [[other for other in speeds if alike(speed, other, within)] for speed in speeds]
    largest = max(classes, key=len)
    rates = [speed.bytes_per_s for speed in largest if speed.bytes_per_s is not None]
    latency_s = statistics.median(speed.latency_s for speed in largest)
    return LinkSpeed(rounded(statistics.median(rates)), rounded(latency_s))


def rounded(value: float) -> float:
    """Return a measured number with as many digits as it is good for."""
    return float(f"{value:.{_DIGITS}g}")


def _seconds(link: LinkSpeed, size: int) -> float:
    return link.latency_s + (size / link.bytes_per_s if link.bytes_per_s else 0.0)


def _in_one_node(devices: Sequence[Device], pair: Pair) -> bool:
    return devices[pair[0]].node == devices[pair[1]].node


def _with_nodes(cluster: Cluster, links: Mapping[Pair, LinkSpeed], within: float) -> Cluster:
    by_nodes: dict[tuple[str, str], list[Pair]] = {}
    for first, second in links:
        ends = (cluster.devices[first].node, cluster.devices[second].node)
        by_nodes.setdefault(ends, []).append((first, second))
    own = []
    for ends, pairs in by_nodes.items():
        usual = typical([links[pair] for pair in pairs], within)
        if not alike(usual, _said(cluster, pairs[0]), within):
            own.append(PairLink(ends, usual))
    return replace(cluster, links=tuple(own))


def _with_devices(cluster: Cluster, links: Mapping[Pair, LinkSpeed], within: float) -> Cluster:
    own = []
    for pair, speed in links.items():
        if not alike(speed, _said(cluster, pair), within):
            names = (cluster.devices[pair[0]].name, cluster.devices[pair[1]].name)
            own.append(PairLink(names, typical([speed])))
    return replace(cluster, links=(*cluster.links, *own))


def _said(cluster: Cluster, pair: Pair) -> LinkSpeed:
    return cluster.link(cluster.devices[pair[0]], cluster.devices[pair[1]])


def _devices(members: Sequence[Member]) -> tuple[Device, ...]:
    """Return a device for each rank; those of a kind have one speed, in a node one memory."""
    speeds = _speeds(members)
    memory: dict[tuple[str, str], list[int | None]] = {}
    for member in members:
        memory.setdefault((member.node, member.kind), []).append(member.memory_bytes)
    counts: dict[str, int] = dict.fromkeys(speeds, 0)
    devices = []
    for member in members:
        told = [each for each in memory[member.node, member.kind] if each is not None]
        devices.append(
            Device(
                name=f"{member.kind}-{counts[member.kind]}",
                kind=member.kind,
                node=member.node,
                memory_bytes=min(told) // 2**20 * 2**20 if told else None,
                speed=speeds[member.kind],
            )
        )
        counts[member.kind] += 1
    return tuple(devices)


def _speeds(members: Sequence[Member]) -> dict[str, float]:
    """Return how fast each kind is against the slowest."""
    rates: dict[str, list[float]] = {}
    for member in members:
        rates.setdefault(member.kind, []).append(member.flops_per_s or math.nan)
    if any(map(math.isnan, chain.from_iterable(rates.values()))):
        return dict.fromkeys(rates, 1.0)
    middle = {kind: statistics.median(each) for kind, each in rates.items()}
    slowest = min(middle.values())
    return {kind: rounded(rate / slowest) for kind, rate in middle.items()}
