"""A directed acyclic graph that shrinks: nodes are merged and it stays acyclic.

Reachability is kept as one row of bits per node. A merge changes the rows of its ancestors only,
so that thousands of merges on thousands of nodes take a second or two.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable

import numpy as np
import numpy.typing as npt


class Quotient:
    """Groups of the nodes ``0..count-1`` and the edges between groups.

    A group is known by the smallest of its nodes. Groups are convex: no path leaves one and
    comes back.

    Parameters
    ----------
    count
        Number of nodes.
    edges
        ``(before, after)`` pairs with ``before < after``.
    """

    def __init__(self, count: int, edges: Iterable[tuple[int, int]]) -> None:
        self.members: dict[int, list[int]] = {node: [node] for node in range(count)}
        self.before: list[set[int]] = [set() for _ in range(count)]
        self.after: list[set[int]] = [set() for _ in range(count)]
        for source, target in edges:
            self.before[target].add(source)
            self.after[source].add(target)
        self._group = list(range(count))
        self._reach = np.zeros((count, (count + 7) // 8), dtype=np.uint8)
        for node in reversed(range(count)):
            for target in self.after[node]:
                self._reach[node] |= self._reach[target]
            self._reach[node, node >> 3] |= np.uint8(1 << (node & 7))

    def find(self, node: int) -> int:
        """Return the group that holds ``node``."""
        return self._group[node]

    def can_merge(self, source: int, target: int) -> bool:
        """Return whether the edge ``source -> target`` is the only path between its ends."""
        if self.before[target] == {source} or self.after[source] == {target}:
            return True
        others = [group for group in self.after[source] if group != target]
        return not bool(self._reaching(target)[others].any())

    def closure(self, groups: Collection[int]) -> set[int]:
        """Return ``groups`` and every group on a path between two of them."""
        chosen = sorted(groups)
        below = np.bitwise_or.reduce(self._reach[chosen], axis=0)
        above = np.logical_or.reduce([self._reaching(group) for group in chosen])
        inside = np.unpackbits(below, bitorder="little", count=len(above)).astype(bool) & above
        return {int(group) for group in np.flatnonzero(inside) if int(group) in self.members}

    def merge(self, groups: Collection[int]) -> int:
        """Make one group of a convex set of groups and return its number."""
        chosen = sorted(groups)
        kept, inside = chosen[0], set(chosen)
        above = np.logical_or.reduce([self._reaching(group) for group in chosen])
        self._reach[above] |= np.bitwise_or.reduce(self._reach[chosen], axis=0)
        before = set[int]().union(*(self.before[group] for group in chosen)) - inside
        after = set[int]().union(*(self.after[group] for group in chosen)) - inside
        members = sorted(node for group in chosen for node in self.members[group])
        for neighbour in before:
            self.after[neighbour] = (self.after[neighbour] - inside) | {kept}
        for neighbour in after:
            self.before[neighbour] = (self.before[neighbour] - inside) | {kept}
        for group in chosen[1:]:
            del self.members[group]
            self.before[group] = self.after[group] = set()
        self.members[kept], self.before[kept], self.after[kept] = members, before, after
        for node in members:
            self._group[node] = kept
        return kept

    def order(self) -> list[int]:
        """Return the groups in topological order, the smallest number first where free."""
        waiting = {group: len(self.before[group]) for group in self.members}
        ready = [group for group, count in waiting.items() if count == 0]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            group = heapq.heappop(ready)
            found.append(group)
            for target in self.after[group]:
                waiting[target] -= 1
                if waiting[target] == 0:
                    heapq.heappush(ready, target)
        return found

    def _reaching(self, group: int) -> npt.NDArray[np.bool_]:
        """Return for every node number whether it reaches ``group``."""
        column = self._reach[:, group >> 3] >> np.uint8(group & 7)
        return (column & np.uint8(1)).astype(bool)
