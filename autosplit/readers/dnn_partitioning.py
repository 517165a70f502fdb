"""Workloads of "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020).

A JSON file of operators with their times on an accelerator and on the host CPU, and of edges with
the time to move a sender's output between an accelerator and host memory. Every device pays for
each sender once, however many consumers it has. Nodes of one ``colorClass`` stay together; in
training this ties a backward node to its forward node, and the order of forward nodes is the
order of the pipeline. Times are milliseconds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autosplit.errors import DataError
from autosplit.readers.base import READERS, field, number
from autosplit.readers.workload import Workload
from autosplit.serialize import parse_json
from autosplit.solvers.base import ChainProblem, Link, Net

if TYPE_CHECKING:
    import networkx as nx

MS = 1e-3


Colour = tuple[str, Hashable]
"""A colour class of the file, or a node that has none and stands alone."""


@dataclass(frozen=True, slots=True)
class _Node:
    key: Hashable
    name: str
    accelerator_s: float
    host_s: float
    nbytes: float
    backward: bool
    supported: bool
    colour: Colour


@dataclass(frozen=True, slots=True)
class _Edge:
    source: Hashable
    target: Hashable
    cost_s: float


class DnnPartitioning:
    """Reader of these files."""

    def recognises(self, text: str) -> bool:
        """Return whether the text is JSON with nodes and accelerators."""
        return text.lstrip().startswith("{") and '"nodes"' in text and '"maxFPGAs"' in text

    def read(self, text: str, source: str) -> Workload:
        """Return the workload."""
        data = parse_json(text, source)
        accelerators = _count(field(data, "maxFPGAs", source), f"{source}: maxFPGAs")
        hosts = _count(data.get("maxCPUs", 0), f"{source}: maxCPUs")
        budget = number(field(data, "maxSizePerFPGA", source), f"{source}: maxSizePerFPGA")
        if accelerators < 1:
            raise DataError(f"{source}: maxFPGAs is 0", cause="there is nothing to plan for")
        nodes = _nodes(data, source)
        edges = _edges(data, nodes, source)
        _refuse_cycles(nodes, edges, source)
        return _workload(source, list(nodes.values()), edges, accelerators, hosts, budget)


READERS.register("dnn-partitioning")(DnnPartitioning())


# ---------------------------------------------------------------- reading


def _nodes(data: dict[str, Any], source: str) -> dict[Hashable, _Node]:
    nodes: dict[Hashable, _Node] = {}
    for index, entry in enumerate(_objects(data, "nodes", source)):
        place = f"{source}: nodes[{index}]"
        key = _scalar(field(entry, "id", place), f"{place}.id")
        if key in nodes:
            raise DataError(f"{place}.id: node {key} appears twice")
        colour: Colour = ("alone", key)
        if entry.get("colorClass") is not None:
            colour = ("class", _scalar(entry["colorClass"], f"{place}.colorClass"))
        nodes[key] = _Node(
            key=key,
            name=str(entry.get("name", key)),
            accelerator_s=_time(entry, "fpgaLatency", place),
            host_s=_time(entry, "cpuLatency", place),
            nbytes=number(entry.get("size", 0.0), f"{place}.size"),
            backward=_flag(entry.get("isBackwardNode", False), f"{place}.isBackwardNode"),
            supported=_flag(entry.get("supportedOnFpga", True), f"{place}.supportedOnFpga"),
            colour=colour,
        )
    if not nodes:
        raise DataError(f"{source}: nodes is empty")
    return nodes


def _edges(data: dict[str, Any], nodes: dict[Hashable, _Node], source: str) -> list[_Edge]:
    edges = []
    cost_of: dict[Hashable, float] = {}
    for index, entry in enumerate(_objects(data, "edges", source)):
        place = f"{source}: edges[{index}]"
        ends = []
        for name in ("sourceId", "destId"):
            key = _scalar(field(entry, name, place), f"{place}.{name}")
            if key not in nodes:
                raise DataError(f"{place}.{name}: there is no node {key}")
            ends.append(key)
        cost = _time(entry, "cost", place)
        if cost_of.setdefault(ends[0], cost) != cost:
            raise DataError(
                f"{place}.cost: node {ends[0]} has two costs, {cost_of[ends[0]] / MS:g} and "
                f"{cost / MS:g}",
                cause="the cost of an edge is that of its sender's output, whoever reads it",
            )
        edges.append(_Edge(ends[0], ends[1], cost))
    return edges


def _objects(data: dict[str, Any], name: str, source: str) -> list[dict[str, Any]]:
    found = field(data, name, source)
    if not isinstance(found, list):
        raise DataError(f"{source}: {name} must be a list")
    for index, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise DataError(f"{source}: {name}[{index}] must be an object")
    return found


def _time(entry: dict[str, Any], name: str, place: str) -> float:
    return number(field(entry, name, place), f"{place}.{name}") * MS


def _count(value: Any, place: str) -> int:
    count = number(value, place)
    if count != int(count):
        raise DataError(f"{place} is {value}", cause="it must be a whole number")
    return int(count)


def _scalar(value: Any, place: str) -> Hashable:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise DataError(f"{place}: expected a number or a text, found {json.dumps(value)[:40]}")
    return value


def _flag(value: Any, place: str) -> bool:
    if value not in (0, 1, True, False):
        raise DataError(f"{place}: expected true or false, found {value!r}")
    return bool(value)


# ---------------------------------------------------------------- cycles


def _refuse_cycles(nodes: dict[Hashable, _Node], edges: list[_Edge], source: str) -> None:
    import networkx as nx

    plain: nx.DiGraph[Hashable] = nx.DiGraph((edge.source, edge.target) for edge in edges)
    if circle := _cycle(plain):
        names = " -> ".join(nodes[key].name for key in circle)
        raise DataError(f"{source}: the edges form a cycle", cause=names)
    together: nx.DiGraph[Colour] = nx.DiGraph()
    for edge in edges:
        first, second = nodes[edge.source], nodes[edge.target]
        if not first.backward and not second.backward and first.colour != second.colour:
            together.add_edge(first.colour, second.colour, nodes=(first.name, second.name))
    if cycle := _cycle(together):
        steps = itertools.pairwise(cycle)
        names = ", ".join(" -> ".join(together.edges[step]["nodes"]) for step in steps)
        classes = ", ".join(str(c[1]) for c in dict.fromkeys(cycle) if c[0] == "class")
        raise DataError(
            f"{source}: the nodes of colorClass {classes} cannot stay together",
            cause=f"nodes between them would have to run before and after: {names}",
        )


def _cycle(graph: nx.DiGraph[Any]) -> list[Any]:
    import networkx as nx

    try:
        edges = nx.find_cycle(graph)
    except nx.NetworkXNoCycle:
        return []
    return [edges[0][0], *(edge[1] for edge in edges)]


# ---------------------------------------------------------------- building the problem


def _workload(
    source: str,
    nodes: list[_Node],
    edges: list[_Edge],
    accelerators: int,
    hosts: int,
    budget: float,
) -> Workload:
    group_of, precedence, count = _groups(nodes, edges)

    def sums(values: Iterable[float]) -> tuple[float, ...]:
        total = [0.0] * count
        for node, value in zip(nodes, values, strict=True):
            total[group_of[node.key]] += value
        return tuple(total)

    names: list[list[str]] = [[] for _ in range(count)]
    for node in nodes:
        names[group_of[node.key]].append(node.name)
    link = Link(s_per_byte=1.0)
    problem = ChainProblem(
        num_stages=accelerators,
        work_s=sums(node.accelerator_s for node in nodes),
        edges=precedence,
        nets=_nets(edges, group_of),
        links=(link,) * (accelerators - 1),
        static_bytes=sums(node.nbytes for node in nodes),
        budget_bytes=(budget,) * accelerators,
        communication="per_device",
        allow_empty=True,
    )
    return Workload(
        name=source,
        nodes=tuple(tuple(each) for each in names),
        problem=problem,
        link=link,
        forward_s=sums(0.0 if node.backward else node.accelerator_s for node in nodes),
        backward_s=sums(node.accelerator_s if node.backward else 0.0 for node in nodes),
        host_forward_s=sums(0.0 if node.backward else node.host_s for node in nodes),
        host_backward_s=sums(node.host_s if node.backward else 0.0 for node in nodes),
        hosts=hosts,
        unsupported=tuple(sorted({group_of[node.key] for node in nodes if not node.supported})),
        notes=("times are taken as milliseconds; every device pays for the senders cut at it",),
    )


def _groups(
    nodes: list[_Node], edges: list[_Edge]
) -> tuple[dict[Hashable, int], tuple[tuple[int, int], ...], int]:
    """Return the group of each node, the order of groups, and their number.

    Colours are ordered by their forward edges. A colour without a forward node is ordered by its
    backward edges, mirrored; where mirroring closes a circle, the colours become one group.
    """
    import networkx as nx

    by_key = {node.key: node for node in nodes}
    with_forward = {node.colour for node in nodes if not node.backward}
    order: nx.DiGraph[Colour] = nx.DiGraph()
    order.add_nodes_from(node.colour for node in nodes)
    for edge in edges:
        first, second = by_key[edge.source], by_key[edge.target]
        if first.colour == second.colour:
            continue
        if not first.backward and not second.backward:
            order.add_edge(first.colour, second.colour)
        elif (
            first.backward and second.backward and not {first.colour, second.colour} <= with_forward
        ):
            order.add_edge(second.colour, first.colour)
    merged = nx.condensation(order)
    rank = {colour: index for index, colour in enumerate(order)}
    key = {c: min(rank[m] for m in data["members"]) for c, data in merged.nodes(data=True)}
    position = {
        component: index
        for index, component in enumerate(
            nx.lexicographical_topological_sort(merged, key=key.__getitem__)
        )
    }
    mapping = merged.graph["mapping"]
    group_of = {node.key: position[mapping[node.colour]] for node in nodes}
    pairs = sorted({(position[a], position[b]) for a, b in merged.edges})
    return group_of, tuple(pairs), len(position)


def _nets(edges: list[_Edge], group_of: dict[Hashable, int]) -> tuple[Net, ...]:
    """Return one net per sender: its group, and those of its readers."""
    pins: dict[Hashable, dict[int, None]] = {}
    cost: dict[Hashable, float] = {}
    for edge in edges:
        reached = pins.setdefault(edge.source, {group_of[edge.source]: None})
        reached[group_of[edge.target]] = None
        cost[edge.source] = edge.cost_s
    return tuple(
        Net(tuple(reached), cost[sender]) for sender, reached in pins.items() if len(reached) > 1
    )
