"""PipeDream's profiler graphs: one node a line, then the edges. Times are milliseconds.

``nodeN -- LAYER -- forward_compute_time=F, backward_compute_time=B, activation_size=A,
parameter_size=P`` with A bytes, or a list ``[a; b; c]`` for a layer that returns several tensors,
which ``__getitem__(i)`` nodes take apart; then ``<tab>nodeA -- nodeB`` for each edge.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from autosplit.errors import DataError
from autosplit.readers.base import READERS
from autosplit.types import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Profile,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
)

MS = 1e-3
NODE = re.compile(r"^\s*(?P<name>\S+) -- (?P<layer>.*) -- (?P<fields>[a-z_]+=.*)$")
EDGE = re.compile(r"^\s*(?P<before>\S+) -- (?P<after>\S+)\s*$")
ITEM = re.compile(r"^__getitem__\((?P<index>\d+)\)$")
STAGE = re.compile(r" -- stage_id=\d+\s*$")


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    layer: str
    line: int
    forward_s: float
    backward_s: float
    activations: tuple[int, ...]
    parameter_bytes: int

    @property
    def item(self) -> int | None:
        """Index of the tensor this node takes from its input; None for other nodes."""
        match = ITEM.match(self.layer)
        return int(match["index"]) if match else None

    @property
    def is_input(self) -> bool:
        """Return whether it stands for an input of the model."""
        return self.layer.startswith("Input")


class PipeDream:
    """Reader of these files."""

    def recognises(self, text: str) -> bool:
        """Return whether the first line is a node."""
        first = text.lstrip().split("\n", 1)[0]
        return " -- " in first and first.startswith("node")

    def read(self, text: str, source: str) -> Profile:
        """Return the profile, without the model's inputs and tensors that nothing reads."""
        nodes, edges = _parse(text, source)
        sinks = nodes.keys() - {before for before, _ in edges}
        dropped = {name for name in sinks if nodes[name].item is not None}
        nodes = {name: node for name, node in nodes.items() if name not in dropped}
        edges = [edge for edge in edges if edge[1] not in dropped]
        order = _order(nodes, edges, source)
        return _profile(nodes, edges, order, text, source)


READERS.register("pipedream")(PipeDream())


# ---------------------------------------------------------------- reading


def _parse(text: str, source: str) -> tuple[dict[str, _Node], list[tuple[str, str]]]:
    nodes: dict[str, _Node] = {}
    edges: dict[tuple[str, str], int] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = STAGE.sub("", raw)
        place = f"{source}, line {number}"
        if not line.strip():
            continue
        if match := NODE.match(line):
            node = _node(match, number, place)
            if node.name in nodes:
                raise DataError(f"{place}: {node.name} appears twice")
            nodes[node.name] = node
        elif match := EDGE.match(line):
            edges.setdefault((match["before"], match["after"]), number)
        else:
            raise DataError(f"{place} is neither a node nor an edge", cause=line.strip()[:60])
    for edge, number in edges.items():
        for name in edge:
            if name not in nodes:
                raise DataError(f"{source}, line {number}: there is no node {name}")
    return nodes, list(edges)


def _node(match: re.Match[str], line: int, place: str) -> _Node:
    found = {}
    for part in match["fields"].split(", "):
        name, _, value = part.partition("=")
        found[name.strip()] = value.strip()

    def read(name: str) -> float:
        if name not in found:
            raise DataError(f"{place}: field {name!r} is missing")
        return _number(found[name], f"{place}: {name}")

    return _Node(
        name=match["name"],
        layer=match["layer"],
        line=line,
        forward_s=read("forward_compute_time") * MS,
        backward_s=read("backward_compute_time") * MS,
        activations=_sizes(found, place),
        parameter_bytes=round(read("parameter_size")),
    )


def _sizes(found: dict[str, str], place: str) -> tuple[int, ...]:
    if "activation_size" not in found:
        raise DataError(f"{place}: field 'activation_size' is missing")
    text = found["activation_size"]
    parts = text[1:-1].split(";") if text.startswith("[") and text.endswith("]") else [text]
    return tuple(round(_number(part, f"{place}: activation_size")) for part in parts)


def _number(text: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{place}: expected a number, found {text.strip()!r}") from None
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{place} is {value}", cause="it must be a finite number of at least 0")
    return value


def _order(nodes: dict[str, _Node], edges: Iterable[tuple[str, str]], source: str) -> list[str]:
    """Return the names in a topological order, by their lines where there is a choice."""
    waiting = dict.fromkeys(nodes, 0)
    after: dict[str, list[str]] = {name: [] for name in nodes}
    for first, second in edges:
        after[first].append(second)
        waiting[second] += 1
    ready = [(nodes[name].line, name) for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        _, name = heapq.heappop(ready)
        order.append(name)
        for other in after[name]:
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (nodes[other].line, other))
    if len(order) < len(nodes):
        rest = sorted((nodes[name].line, name) for name in nodes.keys() - set(order))
        names = ", ".join(name for _, name in rest[:6])
        raise DataError(
            f"{source}, line {rest[0][0]}: the edges form a cycle", cause=f"among {names}"
        )
    return order


# ---------------------------------------------------------------- building the profile


def _profile(
    nodes: dict[str, _Node],
    edges: list[tuple[str, str]],
    order: list[str],
    text: str,
    source: str,
) -> Profile:
    layers = [nodes[name] for name in order if not nodes[name].is_input]
    if not layers:
        raise DataError(f"{source} has no layer")
    storage = {node.name: index for index, node in enumerate(layers)}
    return Profile(
        model=ModelRef(spec=source),
        fingerprint=hashlib.sha256(text.encode()).hexdigest()[:16],
        device=DeviceInfo("file", "as profiled by PipeDream", 1, "", "file"),
        layers=tuple(
            LayerProfile(
                name=node.name,
                module=node.layer,
                block=None,
                structure=node.layer,
                nodes=(node.name,),
                forward=Timing(node.forward_s),
                backward=Timing(node.backward_s),
                saved=(storage[node.name],),
            )
            for node in layers
        ),
        values=_values(nodes, edges, order, storage, source),
        states=tuple(
            StateProfile(
                f"{node.name}.parameters", "parameter", node.parameter_bytes, True, (node.name,)
            )
            for node in layers
            if node.parameter_bytes
        ),
        storages=tuple(
            StorageProfile(index, sum(node.activations)) for index, node in enumerate(layers)
        ),
        notes=("read from a PipeDream graph: times as in the file, no model to export",),
    )


def _values(
    nodes: dict[str, _Node],
    edges: list[tuple[str, str]],
    order: list[str],
    storage: dict[str, int],
    source: str,
) -> tuple[ValueProfile, ...]:
    """Return each tensor with its readers; a tensor of a list goes to those that take it out."""
    place = {name: index for index, name in enumerate(order)}
    consumers: dict[tuple[str, int | None], list[str]] = {}
    for before, after in sorted(edges, key=lambda edge: (place[edge[0]], place[edge[1]])):
        item = nodes[after].item if len(nodes[before].activations) > 1 else None
        if item is not None and item >= len(nodes[before].activations):
            raise DataError(
                f"{source}, line {nodes[after].line}: {nodes[after].layer} of {before}",
                cause=f"{before} returns {len(nodes[before].activations)} tensors",
            )
        consumers.setdefault((before, item), []).append(after)
    sinks = [name for name in order if not any(key[0] == name for key in consumers)]
    if len(sinks) == 1 and not nodes[sinks[0]].is_input:
        consumers[sinks[0], None] = []
    values = []
    for (name, item), readers in consumers.items():
        sizes = nodes[name].activations
        values.append(
            ValueProfile(
                name=name if item is None else f"{name}[{item}]",
                producer=None if nodes[name].is_input else name,
                consumers=tuple(readers),
                nbytes=sum(sizes) if item is None else sizes[item],
                shape=(),
                dtype="float32",
                needs_grad=not nodes[name].is_input,
                output=not readers,
                storage=storage.get(name) if item is None else None,
            )
        )
    return tuple(values)
