"""From the cost model to the chain problem that solvers answer.

What a stage keeps of values that no backward saves (it sends them, or only hands them on) depends
on both of its boundaries, and the problem cannot say it. By default it is left out: the problem
never counts more memory than the cost model, so what a solver proves impossible is impossible.
``cautious`` counts it wherever it could be: what fits then fits.
"""

from __future__ import annotations

import math
import operator
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from autosplit.cost import CostModel
from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net, Shared

Groups = Sequence[Sequence[int]]
"""Layers that stay together; every layer in one group, groups in a topological order."""

Recompute = Literal["none", "auto", "all"]


def problem(
    model: CostModel,
    groups: Groups,
    *,
    fixed: Iterable[tuple[int, int]] = (),
    apart: Iterable[tuple[tuple[int, ...], tuple[int, ...]]] = (),
    alone: Iterable[int] = (),
    kinds: tuple[DeviceKind, ...] = (),
    kind_links: tuple[tuple[Link, ...], ...] = (),
    recompute: Recompute = "none",
    cautious: bool = False,
) -> ChainProblem:
    """Return the chain problem over groups of layers.

    Parameters
    ----------
    model
        Knows what everything costs.
    groups
        The nodes of the problem.
    fixed
        ``(group, stage)`` pairs.
    apart, alone
        Pairs of sets of groups that share no stage, and groups that share it with none.
    kinds, kind_links
        Devices in free order; they replace places and links of the model.
    recompute
        Whether groups are recomputed in backward: never, all of them, or as solvers choose.
    cautious
        Whether to count too much memory rather than too little.
    """
    graph = model.graph
    group_of = {layer: number for number, group in enumerate(groups) for layer in group}
    pairs = {(group_of[before], group_of[after]) for before, after in graph.edges}
    bounded = model.bounded or any(math.isfinite(kind.budget_bytes) for kind in kinds)
    work = per_group(groups, model.times.forward_s, model.times.backward_s)
    again = per_group(groups, model.times.forward_s)
    spared = _spared_bytes(model, group_of, len(groups))
    saved = per_group(groups, model.memory.saved_bytes)
    if recompute == "all":
        work = tuple(map(operator.add, work, again))
        saved = tuple(map(operator.sub, saved, spared))
    if cautious:
        saved = tuple(map(operator.add, saved, _unsaved(model, group_of, len(groups), recompute)))
    plain = ChainProblem(
        num_stages=model.schedule.stages,
        work_s=work,
        entry_s=math.fsum(model.times.entry_s),
        edges=tuple(sorted(pair for pair in pairs if pair[0] != pair[1])),
        nets=_nets(model, group_of),
        speeds=() if kinds else tuple(place.speed for place in model.places),
        links=() if kinds else _links(model),
        kinds=kinds,
        kind_links=kind_links,
        in_flight=model.schedule.in_flight,
        fixed=tuple(fixed),
        apart=tuple(apart),
        alone=tuple(alone),
        overlap=model.overlap,
        objective=model.objective,
        microbatches=model.schedule.microbatches,
    )
    if not bounded:
        return plain
    static, shared = _static(model, group_of, len(groups), cautious)
    return replace(
        plain,
        static_bytes=static,
        shared=shared,
        saved_bytes=saved,
        workspace_bytes=_workspace(model, groups, cautious),
        budget_bytes=() if kinds else _budgets(model, cautious),
        boundary_factor=_buffers(model, cautious),
        recompute_s=again if recompute == "auto" else (),
        recompute_bytes=spared if recompute == "auto" else (),
    )


def per_group(groups: Groups, *amounts: Sequence[float]) -> tuple[float, ...]:
    """Return for each group the sum of all amounts of its layers."""
    return tuple(
        math.fsum(amount[layer] for amount in amounts for layer in group) for group in groups
    )


def _links(model: CostModel) -> tuple[Link, ...]:
    return tuple(
        Link() if model.same_rank(boundary) else link for boundary, link in enumerate(model.links)
    )


def _buffers(model: CostModel, cautious: bool) -> tuple[float, ...]:
    """Return how often a stage holds what it receives: the runtime keeps every micro-batch.

    A cautious stage may keep a copy of each in flight, to hand on. Stages with a boundary inside
    their rank receive nothing there; the problem does not know which of its boundaries that is.
    """
    last = model.schedule.stages - 1
    factors = []
    for stage in range(last + 1):
        inside = (stage and model.same_rank(stage - 1)) or (stage < last and model.same_rank(stage))
        factor = 0 if inside and not cautious else model.schedule.microbatches
        factors.append(float(factor + (model.schedule.in_flight[stage] if cautious else 0)))
    return tuple(factors)


def _budgets(model: CostModel, cautious: bool) -> tuple[float, ...]:
    """Return the memory of each stage's device; cautious stages of one rank share it evenly."""
    share = model.schedule.chunks if cautious else 1
    return tuple(place.budget_bytes / share for place in model.places)


def _unsaved(
    model: CostModel, group_of: dict[int, int], count: int, recompute: Recompute
) -> tuple[float, ...]:
    """Return the bytes that a stage may keep and that no group saves in its place.

    These are values of its groups that it sends, and those that it makes again.
    """
    kept = [0.0] * count
    for value in model.graph.values:
        if value.producer is None or not model.graph.training:
            continue
        maker = group_of[value.producer]
        if value.storage not in model.memory.owner or recompute != "none":
            kept[maker] += value.nbytes
        if value.made_again:
            held = value.nbytes
            if value.storage is not None:
                held = max(held, model.graph.storage_bytes[value.storage])
            for reader in {group_of[layer] for layer in value.consumers} - {maker}:
                kept[reader] += held
    return tuple(kept)


def _nets(model: CostModel, group_of: dict[int, int]) -> tuple[Net, ...]:
    """Return one net per set of groups that values connect, values of equal sets added up."""
    volume: dict[tuple[tuple[int, ...], bool], list[int]] = defaultdict(lambda: [0, 0, 0])
    for value in model.graph.values:
        if value.producer is None:
            continue
        maker = group_of[value.producer]
        readers = {group_of[layer] for layer in value.receivers} - {maker}
        if not readers and not value.output:
            continue
        total = volume[(maker, *sorted(readers)), value.output]
        total[0] += value.nbytes * (1 + value.needs_grad)
        total[1] += value.nbytes * value.needs_grad
        total[2] += 1 + value.needs_grad
    return tuple(
        Net(pins=pins, volume=total[0], returned=total[1], messages=total[2], to_end=to_end)
        for (pins, to_end), total in sorted(volume.items())
    )


def _workspace(model: CostModel, groups: Groups, cautious: bool) -> tuple[float, ...]:
    """Return what each group needs for a moment; for the update of its state if cautious."""
    memory = model.memory
    needs = [memory.workspace_bytes(group, ()) for group in groups]
    if cautious and not memory.updates_together:
        for number, members in enumerate(groups):
            needs[number] = max(needs[number], memory.update_bytes(memory.states_of(members)))
    return tuple(map(float, needs))


def _static(
    model: CostModel, group_of: dict[int, int], count: int, cautious: bool
) -> tuple[tuple[float, ...], tuple[Shared, ...]]:
    """Return the bytes of state per group, and of state and inputs that several groups use.

    An update of all parameters at once is part of them if cautious.
    """
    own = [0.0] * count
    shared: dict[tuple[int, ...], float] = defaultdict(float)

    def charge(layers: Iterable[int], nbytes: float) -> None:
        users = tuple(sorted({group_of[layer] for layer in layers}))
        if len(users) == 1:
            own[users[0]] += nbytes
        elif users:
            shared[users] += nbytes

    memory = model.memory
    for state in model.graph.states:
        update = memory.update_bytes([state]) if cautious and memory.updates_together else 0
        charge(state.layers, sum(memory.state_bytes([state])) + update)
    for value in model.graph.values:
        if value.producer is None:
            charge(value.consumers, model.schedule.microbatches * value.nbytes)
    return tuple(own), tuple(Shared(nodes, nbytes) for nodes, nbytes in sorted(shared.items()))


def _spared_bytes(model: CostModel, group_of: dict[int, int], count: int) -> tuple[float, ...]:
    """Return the saved bytes that recomputing a group spares: what no other group saves."""
    savers: dict[int, set[int]] = defaultdict(set)
    for index, layer in enumerate(model.graph.layers):
        for storage in layer.saved:
            savers[storage].add(group_of[index])
    spared = [0.0] * count
    for storage, owner in model.memory.owner.items():
        if savers[storage] == {group_of[owner]}:
            spared[group_of[owner]] += model.graph.storage_bytes[storage]
    return tuple(spared)
