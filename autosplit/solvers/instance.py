"""A chain problem as arrays: the form in which bounds, dynamic program and ILP read it.

Devices become *kinds* (devices that are alike) and links become numbers, so that stages in a
fixed order and devices in a free order are one case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from autosplit.solvers.base import ChainProblem, DeviceKind, Link

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Instance:
    """Arrays over nodes, nets and kinds of a ``ChainProblem``.

    Attributes
    ----------
    kinds
        The kinds of devices; in a fixed order, the distinct pairs of speed and budget.
    order
        Kind of each stage; None when the order is free.
    work
        Seconds per kind and node, shape (kinds, nodes).
    reference
        Work per node that every kind does at ``pace`` or less: ``work[g] * pace[g] >=
        reference``. Sums of it bound loads on any mix of devices.
    net_cost
        Seconds per link and net, shape (links, nets).
    strict
        ``(before, after)`` pairs of nodes with a path between them that cannot share a stage.
    earliest, latest
        First and last stage each node may stand in, given the fixed nodes and strict pairs.
    """

    def __init__(self, problem: ChainProblem) -> None:
        self.problem = problem
        self.num_nodes = problem.num_nodes
        self.num_stages = problem.num_stages
        self._read_devices()
        self._read_nets()
        self._read_memory()
        self._read_places()

    # ------------------------------------------------------------ reading the problem

    def _read_devices(self) -> None:
        problem = self.problem
        self.order: tuple[int, ...] | None = None
        if problem.kinds:
            self.kinds = problem.kinds
        else:
            speeds = problem.speeds or (1.0,) * self.num_stages
            budgets = problem.budget_bytes or (math.inf,) * self.num_stages
            pairs = list(zip(speeds, budgets, strict=True))
            distinct = sorted(set(pairs))
            self.order = tuple(distinct.index(pair) for pair in pairs)
            self.kinds = tuple(
                DeviceKind(count=pairs.count(pair), speed=pair[0], budget_bytes=pair[1])
                for pair in distinct
            )
        base = np.array(problem.work_s, float)
        self.work: Floats = np.array(
            [kind.work_s if kind.work_s else base / kind.speed for kind in self.kinds], float
        )
        self.reference: Floats = np.where((self.work > 0).all(axis=0), self.work[0], 0.0)
        some = self.reference > 0
        self.pace: Floats = np.array(
            [(self.reference[some] / row[some]).max(initial=0.0) or 1.0 for row in self.work]
        )
        self.entry: Floats = np.array([problem.entry_s / kind.speed for kind in self.kinds])
        self.excluded: Bools = np.zeros(self.work.shape, bool)
        for row, kind in zip(self.excluded, self.kinds, strict=True):
            row[list(kind.excluded)] = True

    def _read_nets(self) -> None:
        problem = self.problem
        self.per_device = problem.communication == "per_device"
        links: dict[Link, int] = {}
        self._boundary_link = tuple(
            links.setdefault(problem.link(boundary), len(links))
            for boundary in range(self.num_stages - 1)
        )
        self._kind_link: tuple[tuple[int, ...], ...] = ()
        if problem.kind_links:
            links.clear()
            self._kind_link = tuple(
                tuple(links.setdefault(link, len(links)) for link in row)
                for row in problem.kind_links
            )
        self.links: tuple[Link, ...] = tuple(links) or (Link(),)
        nets = problem.nets
        self.num_nets = len(nets)
        self.net_size: Ints = np.array([len(net.pins) for net in nets], np.int64)
        self.net_start: Ints = np.concatenate([[0], np.cumsum(self.net_size)]).astype(np.int64)
        self.net_pins: Ints = np.array([pin for net in nets for pin in net.pins], np.int64)
        self.to_end: Bools = np.array([net.to_end for net in nets], bool)
        self.net_cost: Floats = np.array(
            [[link.cost(net) for net in nets] for link in self.links], float
        ).reshape(len(self.links), len(nets))
        self.least_cost: Floats = self.net_cost.min(axis=0)
        self.returned: Floats = np.array([net.returned for net in nets], float)
        self.received: Floats = np.array([net.volume for net in nets], float) - self.returned

    def _read_memory(self) -> None:
        problem = self.problem

        def per_node(values: tuple[float, ...]) -> Floats:
            return np.array(values or (0.0,) * self.num_nodes, float)

        self.static = per_node(problem.static_bytes)
        self.saved = per_node(problem.saved_bytes)
        self.workspace = per_node(problem.workspace_bytes)
        self.recompute_s = per_node(problem.recompute_s)
        self.recompute_bytes = np.minimum(per_node(problem.recompute_bytes), self.saved)
        self.in_flight: Floats = np.array(problem.in_flight or (1,) * self.num_stages, float)
        self.factor: Floats = np.array(problem.boundary_factor or (0.0,) * self.num_stages, float)
        whole = (
            self.static.sum()
            + sum(shared.static_bytes for shared in problem.shared)
            + self.in_flight.max() * self.saved.sum()
            + self.workspace.max()
            + self.factor.max() * (self.received.sum() + self.returned.sum())
        )
        self.memory_may_bind = bool(min(kind.budget_bytes for kind in self.kinds) < whole)

    def _read_places(self) -> None:
        self.predecessors: list[list[int]] = [[] for _ in range(self.num_nodes)]
        self.successors: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for before, after in sorted(set(self.problem.edges)):
            self.predecessors[after].append(before)
            self.successors[before].append(after)
        earliest = [0] * self.num_nodes
        latest = [self.num_stages - 1] * self.num_nodes
        for node, stage in self.problem.fixed:
            earliest[node] = latest[node] = stage
        self.strict = self._strict()
        steps = dict.fromkeys(self.problem.edges, 0) | dict.fromkeys(self.strict, 1)
        for before, after in sorted(steps, key=lambda pair: pair[1]):
            step = steps[before, after]
            earliest[after] = max(earliest[after], earliest[before] + step)
        for before, after in sorted(steps, reverse=True):
            latest[before] = min(latest[before], latest[after] - steps[before, after])
        self.earliest: Ints = np.array(earliest, np.int64)
        self.latest: Ints = np.array(latest, np.int64)

    def _strict(self) -> tuple[tuple[int, int], ...]:
        problem = self.problem
        alone = set(problem.alone)
        found = {edge for edge in problem.edges if not alone.isdisjoint(edge)}
        for pair in problem.apart:
            for earlier, later in (pair, pair[::-1]):
                last, first = self.extremes(earlier)[1], self.extremes(later)[0]
                found |= {(a, b) for a in last for b in first if self._reaches(a, b)}
        return tuple(sorted(found))

    def unrelated(self, node: int) -> list[int]:
        """Return the nodes that no path connects with a node."""
        related = (self.ancestors[node] | self.descendants[node])[None, :]
        found: list[int] = np.flatnonzero(~unpack(related, self.num_nodes)[0]).tolist()
        return found

    def _reaches(self, node: int, other: int) -> bool:
        return bool(self.descendants[node, other >> 3] >> (other & 7) & 1)

    # ------------------------------------------------------------ devices and links

    @property
    def counts(self) -> tuple[int, ...]:
        """Return how many devices there are of each kind."""
        return tuple(kind.count for kind in self.kinds)

    @property
    def linked(self) -> bool:
        """Return whether the cost of a boundary depends on the kinds beside it."""
        return len(self.links) > 1 and bool(self._kind_link)

    def link_after(self, boundary: int) -> int:
        """Return the link of a boundary that does not depend on the kinds beside it."""
        return 0 if self._kind_link else self._boundary_link[boundary]

    def link_between(self, before: int, after: int) -> int:
        """Return the link between neighbours of two kinds."""
        return self._kind_link[before][after]

    def device_orders(self) -> Iterator[tuple[int, ...]]:
        """Yield every order of the kinds along the chain, the distinct ones only."""
        if self.order is not None:
            yield self.order
            return
        left = list(self.counts)
        chosen: list[int] = []

        def extend() -> Iterator[tuple[int, ...]]:
            if len(chosen) == self.num_stages:
                yield tuple(chosen)
            for kind in range(len(left)):
                if left[kind]:
                    left[kind] -= 1
                    chosen.append(kind)
                    yield from extend()
                    chosen.pop()
                    left[kind] += 1

        yield from extend()

    # ------------------------------------------------------------ closures

    def extremes(self, nodes: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the nodes without an ancestor and without a descendant among the nodes."""
        reach = unpack(self.descendants[list(nodes)], self.num_nodes)[:, list(nodes)]
        np.fill_diagonal(reach, False)
        first = [node for i, node in enumerate(nodes) if not reach[:, i].any()]
        last = [node for i, node in enumerate(nodes) if not reach[i].any()]
        return first, last

    @cached_property
    def ancestors(self) -> npt.NDArray[np.uint8]:
        """Ancestors of each node, itself included, one packed row of bits each."""
        return _closure(self.predecessors, range(self.num_nodes))

    @cached_property
    def descendants(self) -> npt.NDArray[np.uint8]:
        """Descendants of each node, itself included, one packed row of bits each."""
        return _closure(self.successors, reversed(range(self.num_nodes)))

    @cached_property
    def weights(self) -> Floats:
        """Reference work, static and least saved bytes of each node, shape (nodes, 3)."""
        return np.stack([self.reference, self.static, self.saved - self.recompute_bytes], axis=1)

    @cached_property
    def weights_before(self) -> Floats:
        """``weights`` summed over the ancestors of each node."""
        return _sums(self.ancestors, self.weights)

    @cached_property
    def weights_after(self) -> Floats:
        """``weights`` summed over the descendants of each node."""
        return _sums(self.descendants, self.weights)

    @cached_property
    def nets_of(self) -> list[list[int]]:
        """Nets at each node."""
        at: list[list[int]] = [[] for _ in range(self.num_nodes)]
        for net, spec in enumerate(self.problem.nets):
            for pin in spec.pins:
                at[pin].append(net)
        return at

    def lower_bound(self) -> float:
        """Return a bound of the largest load that needs no search: total and largest work."""
        pace = sum(kind.count * pace for kind, pace in zip(self.kinds, self.pace, strict=True))
        allowed = np.where(self.excluded, np.inf, self.work + self.entry[:, None])
        largest = float(allowed.min(axis=0).max())
        total = float(self.reference.sum())
        if not self.problem.allow_empty:
            total += float(self.pace @ (np.array(self.counts) * self.entry))
        return float(max(total / pace, largest))


def _closure(neighbours: list[list[int]], nodes: Iterator[int] | range) -> npt.NDArray[np.uint8]:
    count = len(neighbours)
    rows = np.zeros((count, (count + 7) // 8), np.uint8)
    for node in nodes:
        if neighbours[node]:
            np.bitwise_or.reduce(rows[neighbours[node]], axis=0, out=rows[node])
        rows[node, node >> 3] |= np.uint8(1 << (node & 7))
    return rows


def unpack(rows: npt.NDArray[np.uint8], count: int) -> Bools:
    """Return packed rows of bits as a matrix of booleans."""
    return np.unpackbits(rows, axis=1, count=count, bitorder="little").astype(bool)


def _sums(rows: npt.NDArray[np.uint8], weights: Floats) -> Floats:
    chunk = 1000
    return np.concatenate(
        [
            unpack(rows[start : start + chunk], len(rows)).astype(np.float64) @ weights
            for start in range(0, len(rows), chunk)
        ]
    )
