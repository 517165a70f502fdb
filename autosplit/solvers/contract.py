"""Merge nodes that some best plan keeps together: a smaller problem with the same answer.

Node v joins its only predecessor (or only successor) u when, in any plan that parts them, moving
v to u's stage makes no load larger: the net between the two saves at least what the work of v and
its other nets add. Where budgets bind, the same must hold for bytes. Moving nodes can empty a
stage, so the contracted problem allows empty stages; a plan of it without empty ones is a best
plan of the original.
"""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from autosplit.solvers.base import ChainProblem, Net, Shared
from autosplit.solvers.instance import Instance


@dataclass(frozen=True, slots=True)
class Contraction:
    """A smaller problem, and for each node of the original the node that holds it."""

    problem: ChainProblem
    group_of: tuple[int, ...]

    def lift(self, stage_of: Sequence[int]) -> tuple[int, ...]:
        """Return the stages of the original nodes."""
        return tuple(stage_of[group] for group in self.group_of)


def contract(problem: ChainProblem, *, memory: bool) -> Contraction:
    """Return the contracted problem.

    Parameters
    ----------
    problem
        The problem.
    memory
        Whether budgets must be respected by every move; without, budgets are dropped.
    """
    small = dataclasses.replace(problem, allow_empty=True)
    if not memory:
        small = _without_budgets(small)
    group_of = list(range(problem.num_nodes))
    while True:
        pairs = _merges(Instance(small), memory)
        if not pairs:
            return Contraction(small, tuple(group_of))
        size = small.num_nodes
        small, renamed = _merged(small, pairs)
        group_of = [renamed[group] for group in group_of]
        if len(pairs) < size // 200:
            return Contraction(small, tuple(group_of))


def _without_budgets(problem: ChainProblem) -> ChainProblem:
    kinds = tuple(dataclasses.replace(kind, budget_bytes=np.inf) for kind in problem.kinds)
    return dataclasses.replace(
        problem, kinds=kinds, budget_bytes=(), recompute_s=(), recompute_bytes=()
    )


# ---------------------------------------------------------------- which nodes may merge


def _merges(inst: Instance, memory: bool) -> list[tuple[int, int]]:
    """Return disjoint pairs (u, v) such that v may join u."""
    rule = _Rule(inst, memory)
    used = [False] * inst.num_nodes
    pairs = []
    for node in range(inst.num_nodes):
        if used[node]:
            continue
        for neighbours, earlier in ((inst.predecessors, True), (inst.successors, False)):
            if len(neighbours[node]) != 1:
                continue
            other = neighbours[node][0]
            if not used[other] and rule.allows(other, node, earlier):
                pairs.append((other, node))
                used[other] = used[node] = True
                break
    return pairs


class _Rule:
    """Whether moving a node to the stage of its neighbour can hurt."""

    def __init__(self, inst: Instance, memory: bool) -> None:
        problem = inst.problem
        self.inst = inst
        self.memory = memory and inst.memory_may_bind
        self.work = inst.work.max(axis=0).tolist()
        self.free_work = np.array(
            [row for row, kind in zip(inst.work, inst.kinds, strict=True) if not kind.pays]
        ).reshape(-1, inst.num_nodes)
        self.costs = np.vstack([inst.net_cost, inst.received, inst.returned]).T.tolist()
        self.pins = [frozenset(net.pins) for net in problem.nets]
        self.alone = set(problem.alone)
        self.placed = {node for node, _ in problem.fixed} | self.alone
        self.placed.update(node for pair in problem.apart for part in pair for node in part)
        self.bytes = (inst.static + inst.in_flight.max() * inst.saved).tolist()
        self.factor = float(inst.factor.min())
        self.shared: list[list[int]] = [[] for _ in range(inst.num_nodes)]
        for index, shared in enumerate(problem.shared):
            for node in shared.nodes:
                self.shared[node].append(index)

    def allows(self, other: int, node: int, earlier: bool) -> bool:
        """Return whether ``node`` may always join ``other``."""
        inst = self.inst
        if node in self.placed or other in self.alone:
            return False
        if (inst.excluded[:, node] & ~inst.excluded[:, other]).any():
            return False
        gain = self._gain(other, node)
        links = gain[:-2]
        work = self.work[node]
        if inst.problem.overlap and work > 0:
            return False
        if min(links) < work or (len(self.free_work) and self.free_work[:, node].any()):
            return False
        return not self.memory or self._fits(other, node, earlier, gain[-2], gain[-1])

    def _gain(self, other: int, node: int) -> list[float]:
        """Return what is saved at each boundary the node no longer lies behind."""
        inst = self.inst
        gain = [0.0] * (len(inst.links) + 2)
        for net in inst.nets_of[node]:
            pins = self.pins[net]
            if other not in pins:
                sign = -1.0
            elif len(pins) == 2 and not inst.to_end[net]:
                sign = 1.0
            else:
                continue
            for index, cost in enumerate(self.costs[net]):
                gain[index] += sign * cost
        return gain

    def _fits(self, other: int, node: int, earlier: bool, received: float, returned: float) -> bool:
        """Return whether no stage needs more memory after the move."""
        inst, problem = self.inst, self.inst.problem
        if inst.recompute_bytes[node] > 0 or (self.factor and min(received, returned) < 0):
            return False
        more = self.bytes[node] + max(0.0, inst.workspace[node] - inst.workspace[other])
        more += sum(
            problem.shared[index].static_bytes
            for index in self.shared[node]
            if index not in self.shared[other]
        )
        saved = self.factor * (returned if earlier else received)
        return bool(saved >= more)


# ---------------------------------------------------------------- the merged problem


def _merged(problem: ChainProblem, pairs: list[tuple[int, int]]) -> tuple[ChainProblem, list[int]]:
    """Return the problem with each pair as one node, and the new index of each old node."""
    host = list(range(problem.num_nodes))
    for keep, gone in pairs:
        host[gone] = keep
    renamed = _renamed(problem, host)
    count = max(renamed) + 1

    def sums(values: tuple[float, ...]) -> tuple[float, ...]:
        return (
            tuple(np.bincount(renamed, weights=values, minlength=count).tolist()) if values else ()
        )

    workspace = np.zeros(count)
    if problem.workspace_bytes:
        np.maximum.at(workspace, renamed, problem.workspace_bytes)
    edges = {(renamed[a], renamed[b]) for a, b in problem.edges}
    kinds = tuple(
        dataclasses.replace(
            kind,
            work_s=sums(kind.work_s),
            excluded=_moved(kind.excluded, renamed),
        )
        for kind in problem.kinds
    )
    merged = dataclasses.replace(
        problem,
        work_s=sums(problem.work_s),
        edges=tuple(sorted(edge for edge in edges if edge[0] != edge[1])),
        nets=_merged_nets(problem.nets, renamed),
        static_bytes=sums(problem.static_bytes),
        saved_bytes=sums(problem.saved_bytes),
        workspace_bytes=tuple(workspace.tolist()) if problem.workspace_bytes else (),
        recompute_s=sums(problem.recompute_s),
        recompute_bytes=sums(problem.recompute_bytes),
        shared=tuple(
            Shared(_moved(each.nodes, renamed), each.static_bytes) for each in problem.shared
        ),
        fixed=tuple(sorted({(renamed[node], stage) for node, stage in problem.fixed})),
        apart=tuple(
            (_moved(first, renamed), _moved(second, renamed)) for first, second in problem.apart
        ),
        alone=_moved(problem.alone, renamed),
        kinds=kinds,
    )
    return merged, renamed


def _moved(nodes: Iterable[int], renamed: list[int]) -> tuple[int, ...]:
    return tuple(sorted({renamed[node] for node in nodes}))


def _renamed(problem: ChainProblem, host: list[int]) -> list[int]:
    """Return new indices in a topological order of the merged graph, lowest old index first."""
    waiting = dict.fromkeys(host, 0)
    after: dict[int, list[int]] = {node: [] for node in waiting}
    for a, b in {(host[a], host[b]) for a, b in problem.edges}:
        if a != b:
            after[a].append(b)
            waiting[b] += 1
    ready = [node for node, count in waiting.items() if not count]
    heapq.heapify(ready)
    position: dict[int, int] = {}
    while ready:
        node = heapq.heappop(ready)
        position[node] = len(position)
        for other in after[node]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, other)
    return [position[node] for node in host]


def _merged_nets(nets: tuple[Net, ...], renamed: list[int]) -> tuple[Net, ...]:
    """Return the nets over merged nodes, those with equal pins as one."""
    merged: dict[tuple[frozenset[int], bool], Net] = {}
    for net in nets:
        pins = tuple(dict.fromkeys(renamed[pin] for pin in net.pins))
        if len(pins) + net.to_end < 2:
            continue
        key = (frozenset(pins), net.to_end)
        other = merged.get(key)
        if other is None:
            merged[key] = dataclasses.replace(net, pins=pins)
        else:
            merged[key] = dataclasses.replace(
                other,
                volume=other.volume + net.volume,
                messages=other.messages + net.messages,
                returned=other.returned + net.returned,
            )
    return tuple(merged.values())
