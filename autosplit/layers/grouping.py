"""From operations to layers: the smallest pieces that a planner moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from autosplit.layers.contract import Quotient
from autosplit.layers.dataflow import Dataflow, dataflow
from autosplit.layers.naming import Namer
from autosplit.layers.signature import structure
from autosplit.layers.work import Work
from autosplit.program import Node, Program

Granularity: TypeAlias = Literal["op", "layer", "block"]

LARGEST_SHARE = 1 / 32
"""Share of the step beyond which a layer takes in no more operations: without a limit, layers
of loops over small operations hide good cuts."""

SMALL_SHARE = 1 / 256
"""Share of the step that weightless operations may always add to a layer, however large it is:
a cut beside them would gain no more than that."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A convex group of operations; fields as in ``types.LayerProfile``."""

    name: str
    module: str
    block: str | None
    structure: str
    nodes: tuple[str, ...]
    layer: str | None = None


@dataclass(frozen=True)
class Grouping:
    """All live operations of a program in layers.

    Parameters
    ----------
    layers
        In a topological order.
    order
        ``(before, after)`` pairs of layer names that no value connects, but a write to memory.
    """

    layers: tuple[Layer, ...]
    order: tuple[tuple[str, str], ...] = ()

    @cached_property
    def layer_of(self) -> dict[str, str]:
        """Layer name of each live operation."""
        return {node: layer.name for layer in self.layers for node in layer.nodes}


def group(
    program: Program,
    cost: Mapping[str, float] | None = None,
    granularity: Granularity = "layer",
) -> Grouping:
    """Group the operations of a program into layers.

    Parameters
    ----------
    program
        A traced model.
    cost
        Time of each operation by node name, in any unit; estimated from shapes by default.
    granularity
        "op": single operations, apart from those that must not be parted; each knows the layer
        that it is a part of. "layer": weightless operations join a neighbour with weights.
        "block": also, layers of one repeated block become one.

    Returns
    -------
    Grouping
        Layers in a topological order; dead operations are in none. Equal programs give equal
        groupings.
    """
    flow = dataflow(program)
    work = Work(program)
    quotient = Quotient(len(flow.nodes), (*flow.data, *flow.order))
    for lock in flow.locks:
        quotient.merge(quotient.closure({quotient.find(index) for index in lock}))
    namer = Namer(program, work)
    if granularity == "op":
        layers = {node: layer for layer in group(program, cost).layers for node in layer.nodes}
        return _finish(program, flow, quotient, namer, layers)
    costs = [work.cost(n) if cost is None else cost.get(n.name, 0.0) for n in flow.nodes]
    blocks = [namer.block_call(node) for node in flow.nodes]
    _Absorber(program, flow, quotient, work, costs, blocks).run()
    if granularity == "block":
        _join_blocks(quotient, blocks)
    return _finish(program, flow, quotient, namer)


class _Absorber:
    """Lets groups without weights join the neighbour they are closest to.

    Closest is the one with the longest common call path; among equals the consumer when the
    group returns more bytes than it takes (so the cut stays at the small value), else the
    producer. What closes one block never joins the next: cuts between blocks stay possible.
    """

    def __init__(
        self,
        program: Program,
        flow: Dataflow,
        quotient: Quotient,
        work: Work,
        costs: list[float],
        blocks: list[int | None],
    ) -> None:
        self._quotient = quotient
        self._nodes = flow.nodes
        self._total = sum(costs)
        heavy = [work.is_heavy(node) for node in flow.nodes]
        light = [0.0 if heavy[i] else cost for i, cost in enumerate(costs)]
        self._cost = {g: sum(costs[i] for i in m) for g, m in quotient.members.items()}
        self._light = {g: sum(light[i] for i in m) for g, m in quotient.members.items()}
        self._heavy = {g for g, m in quotient.members.items() if any(heavy[i] for i in m)}
        self._paths = {g: {flow.nodes[i].calls for i in m} for g, m in quotient.members.items()}
        self._blocks = {
            g: {blocks[i] for i in m if blocks[i] is not None} for g, m in quotient.members.items()
        }
        self._nbytes = {n.name: sum(map(work.nbytes, n.tensors)) for n in program.nodes}
        self._outputs = set(program.outputs)
        self._inputs = {node.name: node.inputs() for node in flow.nodes}
        self._users = {
            name: [user for user in program.users[name] if user in self._inputs]
            for name in self._inputs
        }
        self._is_state = {node.name for node in program.nodes if node.op == "state"}

    def run(self) -> None:
        """Merge until nothing moves any more."""
        changed = True
        while changed:
            changed = False
            for current in self._quotient.order():
                if current in self._quotient.members and current not in self._heavy:
                    changed |= self._absorb(current)

    def _absorb(self, current: int) -> bool:
        for neighbour, pair in self._candidates(current):
            if self._fits(current, neighbour) and self._quotient.can_merge(*pair):
                self._merge(current, neighbour)
                return True
        return False

    def _fits(self, first: int, second: int) -> bool:
        if len(self._blocks[first] | self._blocks[second]) > max(
            1, len(self._blocks[first]), len(self._blocks[second])
        ):
            return False
        cost = self._cost[first] + self._cost[second]
        light = self._light[first] + self._light[second]
        return cost <= self._total * LARGEST_SHARE or light <= self._total * SMALL_SHARE

    def _candidates(self, current: int) -> list[tuple[int, tuple[int, int]]]:
        """Return neighbours, the closest first, with the edge that would be contracted."""
        members = self._quotient.members
        path = self._nodes[members[current][-1]].calls
        grows = self._grows(members[current])
        ranked: list[tuple[tuple[int, int, int], int, tuple[int, int]]] = []
        for source in self._quotient.before[current]:
            rank = (self._common(path, source), int(not grows), members[source][-1])
            ranked.append((rank, source, (source, current)))
        for target in self._quotient.after[current]:
            rank = (self._common(path, target), int(grows), -members[target][0])
            ranked.append((rank, target, (current, target)))
        return [(neighbour, pair) for _, neighbour, pair in sorted(ranked, reverse=True)]

    def _common(self, path: tuple[int, ...], group: int) -> int:
        return max(_common_length(path, other) for other in self._paths[group])

    def _grows(self, indices: Iterable[int]) -> bool:
        names = {self._nodes[index].name for index in indices}
        taken = {source for name in names for source in self._inputs[name]} - names
        given = {
            name
            for name in names
            if name in self._outputs or any(user not in names for user in self._users[name])
        }
        taken_bytes = sum(self._nbytes[name] for name in taken - self._is_state)
        return sum(self._nbytes[name] for name in given) > taken_bytes

    def _merge(self, first: int, second: int) -> None:
        kept = self._quotient.merge({first, second})
        gone = second if kept == first else first
        self._cost[kept] += self._cost.pop(gone)
        self._light[kept] += self._light.pop(gone)
        self._paths[kept] |= self._paths.pop(gone)
        self._blocks[kept] |= self._blocks.pop(gone)
        if gone in self._heavy:
            self._heavy.remove(gone)
            self._heavy.add(kept)


def _common_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    length = 0
    for left, right in zip(first, second, strict=False):
        if left != right:
            break
        length += 1
    return length


def _join_blocks(quotient: Quotient, block_calls: list[int | None]) -> None:
    """Merge neighbouring groups that lie in the same call of a block."""
    block = {
        group: _most_common(block_calls[index] for index in members)
        for group, members in quotient.members.items()
    }
    changed = True
    while changed:
        changed = False
        for current in quotient.order():
            if current not in quotient.members or block[current] is None:
                continue
            for target in sorted(quotient.after[current]):
                if block[target] == block[current] and quotient.can_merge(current, target):
                    kept = quotient.merge({current, target})
                    block[kept] = block[current]
                    changed = True
                    break


def _most_common(values: Iterable[int | None]) -> int | None:
    counts: dict[int, int] = {}
    for value in values:
        if value is not None:
            counts[value] = counts.get(value, 0) + 1
    return max(counts, key=lambda value: (counts[value], -value)) if counts else None


def _finish(
    program: Program,
    flow: Dataflow,
    quotient: Quotient,
    namer: Namer,
    within: Mapping[str, Layer] | None = None,
) -> Grouping:
    """Name the groups and translate order pairs of operations to pairs of layers.

    Groups ``within`` layers take their block from them, so that blocks consist of layers.
    """
    groups = quotient.order()
    members: list[tuple[Node, ...]] = [
        tuple(flow.nodes[index] for index in quotient.members[group]) for group in groups
    ]
    names = namer.unique_names(members)
    live = {node.name for node in flow.nodes}
    layers = tuple(
        Layer(
            name=name,
            module=namer.module(nodes),
            block=within[nodes[0].name].block if within else namer.block(nodes),
            structure=structure(program, nodes, live),
            nodes=tuple(node.name for node in nodes),
            layer=within[nodes[0].name].name if within else None,
        )
        for name, nodes in zip(names, members, strict=True)
    )
    name_of = dict(zip(groups, names, strict=True))

    def lift(pairs: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
        lifted = {(quotient.find(source), quotient.find(target)) for source, target in pairs}
        return {(source, target) for source, target in lifted if source != target}

    rank = {group: index for index, group in enumerate(groups)}
    order = sorted(lift(flow.order) - lift(flow.data), key=lambda p: (rank[p[0]], rank[p[1]]))
    return Grouping(layers, tuple((name_of[source], name_of[target]) for source, target in order))
