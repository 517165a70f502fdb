"""From the cost model to the chain problem that solvers answer.

The problem never counts more memory than the cost model (what a stage keeps of values it only
hands on is left out), so what a solver proves impossible is impossible.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from autosplit.cost import OPTIMIZER_COPIES, CostModel
from autosplit.graph import State
from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net, Shared

Groups = Sequence[Sequence[int]]
"""Layers that stay together; every layer in one group, groups in a topological order."""


def problem(
    model: CostModel,
    groups: Groups,
    *,
    fixed: Iterable[tuple[int, int]] = (),
    kinds: tuple[DeviceKind, ...] = (),
    kind_links: tuple[tuple[Link, ...], ...] = (),
    recompute: bool = False,
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
    kinds, kind_links
        Devices in free order; they replace speeds, budgets and links of the model.
    recompute
        Whether solvers may choose groups to recompute.
    """
    graph = model.graph
    group_of = {layer: number for number, group in enumerate(groups) for layer in group}
    pairs = {(group_of[before], group_of[after]) for before, after in graph.edges}
    static, shared = _static(model, group_of, len(groups))
    bounded = any(math.isfinite(budget) for budget in model.budgets_bytes) or any(
        math.isfinite(kind.budget_bytes) for kind in kinds
    )
    return ChainProblem(
        num_stages=model.schedule.stages,
        work_s=tuple(
            math.fsum(model.forward_s[layer] + model.backward_s[layer] for layer in group)
            for group in groups
        ),
        entry_s=math.fsum(model.entry_s),
        edges=tuple(sorted(pair for pair in pairs if pair[0] != pair[1])),
        nets=_nets(model, group_of),
        speeds=() if kinds else model.speeds,
        links=() if kinds else _links(model),
        kinds=kinds,
        kind_links=kind_links,
        static_bytes=static if bounded else (),
        shared=shared if bounded else (),
        saved_bytes=_saved(model, groups) if bounded else (),
        workspace_bytes=_workspace(model, groups) if bounded else (),
        in_flight=model.schedule.in_flight,
        budget_bytes=model.budgets_bytes if bounded and not kinds else (),
        boundary_factor=_buffers(model) if bounded else (),
        fixed=tuple(fixed),
        overlap=model.overlap,
        objective=model.objective,
        microbatches=model.schedule.microbatches,
        recompute_s=_recompute_s(model, groups) if recompute else (),
        recompute_bytes=_recompute_bytes(model, group_of, len(groups)) if recompute else (),
    )


def _links(model: CostModel) -> tuple[Link, ...]:
    return tuple(
        Link() if model.same_rank(boundary) else link for boundary, link in enumerate(model.links)
    )


def _buffers(model: CostModel) -> tuple[float, ...]:
    """Return how often a stage holds what it receives: the runtime keeps every micro-batch.

    Stages with a boundary inside their rank receive nothing there; leaving them out counts too
    little rather than too much.
    """
    last = model.schedule.stages - 1
    return tuple(
        0.0
        if (stage and model.same_rank(stage - 1)) or (stage < last and model.same_rank(stage))
        else float(model.schedule.microbatches)
        for stage in range(last + 1)
    )


def _nets(model: CostModel, group_of: dict[int, int]) -> tuple[Net, ...]:
    """Return one net per set of groups that values connect, values of equal sets added up."""
    volume: dict[tuple[tuple[int, ...], bool], list[int]] = defaultdict(lambda: [0, 0, 0])
    for value in model.graph.values:
        if value.producer is None:
            continue
        maker = group_of[value.producer]
        readers = {group_of[layer] for layer in value.consumers} - {maker}
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


def _static(
    model: CostModel, group_of: dict[int, int], count: int
) -> tuple[tuple[float, ...], tuple[Shared, ...]]:
    """Return the bytes of state per group, and of state and inputs that several groups use."""
    own = [0.0] * count
    shared: dict[tuple[int, ...], float] = defaultdict(float)

    def charge(layers: Iterable[int], nbytes: float) -> None:
        users = tuple(sorted({group_of[layer] for layer in layers}))
        if len(users) == 1:
            own[users[0]] += nbytes
        elif users:
            shared[users] += nbytes

    for state in model.graph.states:
        charge(state.layers, _state_bytes(model, state))
    for value in model.graph.values:
        if value.producer is None:
            charge(value.consumers, model.schedule.microbatches * value.nbytes)
    return tuple(own), tuple(Shared(nodes, nbytes) for nodes, nbytes in sorted(shared.items()))


def _state_bytes(model: CostModel, state: State) -> int:
    copies = 2 + OPTIMIZER_COPIES[model.optimizer] if state.trainable else 1
    return copies * state.nbytes


def _saved(model: CostModel, groups: Groups) -> tuple[float, ...]:
    if not model.graph.training:
        return (0.0,) * len(groups)
    return tuple(float(sum(model.saved_bytes[layer] for layer in group)) for group in groups)


def _workspace(model: CostModel, groups: Groups) -> tuple[float, ...]:
    layers = model.graph.layers
    return tuple(float(max(layers[layer].workspace_bytes for layer in group)) for group in groups)


def _recompute_s(model: CostModel, groups: Groups) -> tuple[float, ...]:
    return tuple(math.fsum(model.forward_s[layer] for layer in group) for group in groups)


def _recompute_bytes(model: CostModel, group_of: dict[int, int], count: int) -> tuple[float, ...]:
    """Return the saved bytes that recomputing a group spares: what no other group saves."""
    savers: dict[int, set[int]] = defaultdict(set)
    for index, layer in enumerate(model.graph.layers):
        for storage in layer.saved:
            savers[storage].add(group_of[index])
    spared = [0.0] * count
    for storage, owner in model.owner.items():
        if savers[storage] == {group_of[owner]}:
            spared[group_of[owner]] += model.graph.storage_bytes[storage]
    return tuple(spared)
