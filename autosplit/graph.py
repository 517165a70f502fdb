"""A profile as a graph of layers: what depends on what, and which bytes flow along.

Layers are numbered in a topological order; everything after this step speaks in these numbers.
"""

from __future__ import annotations

import difflib
import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING

from autosplit.errors import DataError, UsageError
from autosplit.types import Calibration, LayerProfile, Profile

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that layers hand to one another.

    Parameters
    ----------
    name
        Node name in the program.
    producer
        Index of the layer that makes it; None for a model input.
    consumers
        Indices of the layers that read it, ascending.
    nbytes
        Bytes for one micro-batch.
    needs_grad
        Whether a gradient of the same size comes back.
    output
        Whether the model returns it.
    storage
        Storage it lives in; None when backward keeps nothing of it.
    made_again
        Whether later stages make it themselves. What that takes is less than a message, and left
        out of their times.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    nbytes: int
    needs_grad: bool
    output: bool
    storage: int | None
    made_again: bool = False

    @property
    def receivers(self) -> tuple[int, ...]:
        """Layers to which it is sent where they stand in other stages."""
        return () if self.made_again else self.consumers


@dataclass(frozen=True, slots=True)
class State:
    """A parameter or buffer and the layers (indices) that use it."""

    name: str
    nbytes: int
    trainable: bool
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Graph:
    """The layers of a profile with their dependencies.

    Parameters
    ----------
    layers
        In a topological order.
    values, states
        As in the profile, with layer indices for names.
    storage_bytes
        Bytes of each storage that backward keeps.
    edges
        ``(before, after)`` pairs of layer indices, each once, ascending.
    training
        Whether a step has a backward pass.
    offset_s
        Cost of entering one layer alone, which sums over layers of a stage count too often.
    device
        Kind of the device it was measured on, "cpu" or "cuda".
    rows
        Rows of a micro-batch.
    calibration
        How exported code runs against these layers, where that is known.
    """

    layers: tuple[LayerProfile, ...]
    values: tuple[Value, ...]
    states: tuple[State, ...]
    storage_bytes: dict[int, int]
    edges: tuple[tuple[int, int], ...]
    training: bool
    offset_s: float
    device: str = "cpu"
    rows: int = 1
    calibration: Calibration | None = None

    def __len__(self) -> int:
        return len(self.layers)

    @cached_property
    def index(self) -> dict[str, int]:
        """Index of each layer by name."""
        return {layer.name: position for position, layer in enumerate(self.layers)}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Direct predecessors of each layer, ascending."""
        return _adjacent(len(self), ((after, before) for before, after in self.edges))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Direct successors of each layer, ascending."""
        return _adjacent(len(self), self.edges)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """Set of all layers before each layer, itself left out, as a bit mask."""
        return _reachable(range(len(self)), self.predecessors)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """Set of all layers after each layer, itself left out, as a bit mask."""
        return _reachable(reversed(range(len(self))), self.successors)

    def to_networkx(self) -> networkx.DiGraph[str]:
        """Return the graph by layer names, edges with the ``nbytes`` that flow along them."""
        import networkx

        graph: networkx.DiGraph[str] = networkx.DiGraph()
        graph.add_nodes_from(layer.name for layer in self.layers)
        for before, after in self.edges:
            graph.add_edge(self.layers[before].name, self.layers[after].name, nbytes=0)
        for value in self.values:
            if value.producer is not None:
                source = self.layers[value.producer].name
                for consumer in value.consumers:
                    graph.edges[source, self.layers[consumer].name]["nbytes"] += value.nbytes
        return graph


def build(profile: Profile) -> Graph:
    """Return the graph of a profile, its layers in a topological order.

    The order of the profile is kept wherever it is one already.

    Raises
    ------
    DataError
        If layers depend on one another in a circle, which is named.
    """
    _check_storages(profile)
    names = [layer.name for layer in profile.layers]
    place = {name: position for position, name in enumerate(names)}
    edges = _edges(profile, place)
    order = topological_order(len(names), edges)
    if len(order) < len(names):
        circle = find_cycle(len(names), edges)
        raise DataError(
            "the layers depend on one another in a circle",
            cause=" -> ".join(names[node] for node in (*circle, circle[0])),
        )
    rank = {names[node]: position for position, node in enumerate(order)}
    return Graph(
        layers=tuple(profile.layers[node] for node in order),
        values=tuple(
            Value(
                name=value.name,
                producer=None if value.producer is None else rank[value.producer],
                consumers=tuple(sorted({rank[name] for name in value.consumers})),
                nbytes=value.nbytes,
                needs_grad=value.needs_grad and profile.training,
                output=value.output,
                storage=value.storage,
                made_again=value.made_again,
            )
            for value in profile.values
        ),
        states=tuple(
            State(
                name=state.name,
                nbytes=state.nbytes,
                trainable=state.trainable and profile.training,
                layers=tuple(sorted({rank[name] for name in state.layers})),
            )
            for state in profile.states
        ),
        storage_bytes={storage.index: storage.nbytes for storage in profile.storages},
        edges=tuple(sorted((rank[names[u]], rank[names[v]]) for u, v in edges)),
        training=profile.training,
        offset_s=profile.whole.offset_s if profile.whole else 0.0,
        device=profile.device.kind,
        rows=profile.model.batch_size or 1,
        calibration=profile.calibration,
    )


def topological_order(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return nodes ``0..count-1`` so that every edge points forward, smallest number first.

    Nodes on a cycle, and all that depend on them, are left out.
    """
    pairs = set(edges)
    waiting = [0] * count
    for _, after in pairs:
        waiting[after] += 1
    successors = _adjacent(count, pairs)
    ready = [node for node in range(count) if not waiting[node]]
    order: list[int] = []
    while ready:
        node = heapq.heappop(ready)
        order.append(node)
        for after in successors[node]:
            waiting[after] -= 1
            if not waiting[after]:
                heapq.heappush(ready, after)
    return tuple(order)


def find_cycle(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Return the nodes of one cycle in running order; empty when there is none."""
    pairs = set(edges)
    sorted_out = set(topological_order(count, pairs))
    stuck = [node for node in range(count) if node not in sorted_out]
    if not stuck:
        return ()
    # Every stuck node has a stuck predecessor, so walking backward must meet itself.
    before = _adjacent(count, ((after, first) for first, after in pairs))
    walk = [stuck[0]]
    seen = {stuck[0]: 0}
    while True:
        node = next(node for node in before[walk[-1]] if node not in sorted_out)
        if node in seen:
            return tuple(reversed(walk[seen[node] :]))
        seen[node] = len(walk)
        walk.append(node)


def contract(
    count: int, edges: Sequence[tuple[int, int]], together: Iterable[Iterable[int]]
) -> tuple[tuple[int, ...], ...]:
    """Return groups of nodes such that each set of ``together`` lies in one group.

    A node on a path between two members of a group has to join it, or the groups would depend
    on one another in a circle. Every node is in exactly one group; groups stand in a
    topological order and list their members ascending.
    """
    together = [found for members in together if (found := list(members))]
    if not together:
        return tuple((node,) for node in range(count))
    import networkx

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(edges)
    for members in together:
        first, *rest = members
        for member in rest:
            graph.add_edge(first, member)
            graph.add_edge(member, first)
    groups = sorted(
        (tuple(sorted(group)) for group in networkx.strongly_connected_components(graph)),
        key=lambda group: group[0],
    )
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    between = {
        (group_of[before], group_of[after])
        for before, after in edges
        if group_of[before] != group_of[after]
    }
    return tuple(groups[number] for number in topological_order(len(groups), between))


def find(graph: Graph, name: str) -> tuple[int, ...]:
    """Return all layers, ascending, that a name or pattern means (see ``modules``)."""
    return tuple(sorted({layer for found in modules(graph, name).values() for layer in found}))


def modules(graph: Graph, name: str) -> dict[str, tuple[int, ...]]:
    """Return the layers inside of every layer or module that a name or pattern fits.

    Parameters
    ----------
    graph
        The layers.
    name
        A layer ("h.3.attn#2"), a module ("h.3.attn", at any depth), or a pattern in which ``*``
        and ``?`` stand for parts of one name between dots ("h.*.attn").

    Returns
    -------
    dict of str to tuple of int
        By path, in the order of the layers.

    Raises
    ------
    UsageError
        If nothing fits.
    """
    wanted = name.split(".")
    found: dict[str, list[int]] = {}
    for position, layer in enumerate(graph.layers):
        for path in {layer.name: None, layer.module: None}:
            parts = path.split(".")[: len(wanted)]
            fits = len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
            if fits and position not in found.setdefault(".".join(parts), []):
                found[".".join(parts)].append(position)
    if found:
        return {path: tuple(layers) for path, layers in found.items()}
    known = [layer.name for layer in graph.layers]
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:3]
    raise UsageError(
        f"no layer or module is called {name!r}",
        hint=f"close names: {', '.join(close)}; autosplit show lists all",
    )


def members(mask: int) -> tuple[int, ...]:
    """Return the layer indices of a bit mask, ascending."""
    found = []
    while mask:
        lowest = mask & -mask
        found.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(found)


def _check_storages(profile: Profile) -> None:
    known = {storage.index for storage in profile.storages}
    for layer in profile.layers:
        for storage in layer.saved:
            if storage not in known:
                raise DataError(
                    f"layer {layer.name!r} saves storage {storage}, which is not listed"
                )


def _edges(profile: Profile, place: dict[str, int]) -> set[tuple[int, int]]:
    pairs = {(place[before], place[after]) for before, after in profile.order_edges}
    for value in profile.values:
        if value.producer is not None:
            pairs |= {(place[value.producer], place[reader]) for reader in value.consumers}
    return {(before, after) for before, after in pairs if before != after}


def _adjacent(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    lists: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        lists[source].append(target)
    return tuple(tuple(sorted(targets)) for targets in lists)


def _reachable(order: Iterable[int], neighbours: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    reached = [0] * len(neighbours)
    for node in order:
        for other in neighbours[node]:
            reached[node] |= reached[other] | (1 << other)
    return tuple(reached)
