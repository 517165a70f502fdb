"""What a plan costs, recomputed from the problem alone.

This is the single truth: every solver's plan passes through here before it is handed out, so
that neither a rounded print of a solver nor a fault in a formulation can reach a user. It reads
like the definitions in ``base.ChainProblem`` on purpose and shares no code with the solvers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net

TOLERANCE = 1e-9
"""Relative slack granted to a budget, for sums of floats in another order."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Loads and memory of a plan.

    Parameters
    ----------
    loads_s, work_s
        Load and compute time of each stage, in seconds.
    boundaries_s
        Cost of each boundary under ``pass_through`` (0 under ``per_device``).
    memory_bytes
        Peak memory of each stage.
    objective_s
        Objective of the problem.
    violations
        What the plan breaks, in words; empty for a valid plan.
    """

    loads_s: tuple[float, ...]
    work_s: tuple[float, ...]
    boundaries_s: tuple[float, ...]
    memory_bytes: tuple[float, ...]
    objective_s: float
    violations: tuple[str, ...]


def evaluate(
    problem: ChainProblem,
    stage_of: Sequence[int],
    kind_of: Sequence[int] = (),
    recompute: Sequence[int] = (),
) -> Evaluation:
    """Return what the plan ``stage_of`` costs and which rules it breaks.

    Parameters
    ----------
    problem
        The problem as it was posed (never a contracted one).
    stage_of
        Stage of each node.
    kind_of
        Kind of device of each stage, where the problem names kinds.
    recompute
        Nodes recomputed in backward.
    """
    stages: list[list[int]] = [[] for _ in range(problem.num_stages)]
    for node, stage in enumerate(stage_of):
        stages[stage].append(node)
    work = tuple(
        _work(problem, nodes, stage, kind_of, set(recompute)) for stage, nodes in enumerate(stages)
    )
    if problem.communication == "per_device":
        boundaries = (0.0,) * (problem.num_stages - 1)
        paid = _paid_per_device(problem, stage_of, kind_of)
        loads = tuple(w + c for w, c in zip(work, paid, strict=True))
    else:
        boundaries = _boundary_costs(problem, stage_of, kind_of)
        around = (0.0, *boundaries, 0.0)
        combine = max if problem.overlap else _add
        loads = tuple(combine(w, around[stage], around[stage + 1]) for stage, w in enumerate(work))
    memory = _memory(problem, stages, stage_of, set(recompute))
    objective = max(loads)
    if problem.objective == "step":
        objective = (problem.microbatches - 1) * max(loads) + math.fsum(loads)
    return Evaluation(
        loads,
        work,
        boundaries,
        memory,
        objective,
        tuple(_violations(problem, stages, stage_of, kind_of, memory)),
    )


def _add(work: float, before: float, after: float) -> float:
    return work + before + after


def _kind(problem: ChainProblem, kind_of: Sequence[int], stage: int) -> DeviceKind:
    """Return the device of a stage, also where devices stand in a fixed order."""
    if problem.kinds:
        return problem.kinds[kind_of[stage]]
    return DeviceKind(
        count=1,
        speed=problem.speeds[stage] if problem.speeds else 1.0,
        budget_bytes=problem.budget_bytes[stage] if problem.budget_bytes else math.inf,
    )


def _link(problem: ChainProblem, kind_of: Sequence[int], boundary: int) -> Link:
    if problem.kind_links:
        return problem.kind_links[kind_of[boundary]][kind_of[boundary + 1]]
    return problem.link(boundary)


def _work(
    problem: ChainProblem,
    nodes: list[int],
    stage: int,
    kind_of: Sequence[int],
    recompute: set[int],
) -> float:
    device = _kind(problem, kind_of, stage)
    if device.work_s:
        base = math.fsum(device.work_s[node] for node in nodes)
    else:
        base = math.fsum(problem.work_s[node] for node in nodes) / device.speed
    extra = math.fsum(problem.recompute_s[node] for node in nodes if node in recompute)
    entry = problem.entry_s if nodes else 0.0
    return base + (extra + entry) / device.speed


def _paid_per_device(
    problem: ChainProblem, stage_of: Sequence[int], kind_of: Sequence[int]
) -> list[float]:
    paid = [0.0] * problem.num_stages
    link = problem.link(0)
    for net in problem.nets:
        touched = {stage_of[pin] for pin in net.pins}
        if len(touched) == 1:
            continue
        for stage in touched:
            if _kind(problem, kind_of, stage).pays:
                paid[stage] += link.cost(net)
    return paid


def _boundary_costs(
    problem: ChainProblem, stage_of: Sequence[int], kind_of: Sequence[int]
) -> tuple[float, ...]:
    costs = [0.0] * (problem.num_stages - 1)
    for net in problem.nets:
        for boundary in _crossed(problem, net, stage_of):
            costs[boundary] += _link(problem, kind_of, boundary).cost(net)
    return tuple(costs)


def _crossed(problem: ChainProblem, net: Net, stage_of: Sequence[int]) -> range:
    """Return the boundaries that a net crosses."""
    touched = [stage_of[pin] for pin in net.pins]
    return range(min(touched), problem.num_stages - 1 if net.to_end else max(touched))


def _memory(
    problem: ChainProblem,
    stages: list[list[int]],
    stage_of: Sequence[int],
    recompute: set[int],
) -> tuple[float, ...]:
    received = [0.0] * problem.num_stages
    for net in problem.nets:
        for boundary in _crossed(problem, net, stage_of):
            received[boundary + 1] += net.volume - net.returned
            received[boundary] += net.returned
    result = []
    for stage, nodes in enumerate(stages):
        held = set(nodes)
        total = math.fsum(problem.static_bytes[node] for node in nodes if problem.static_bytes)
        total += sum(s.static_bytes for s in problem.shared if held.intersection(s.nodes))
        saved = math.fsum(problem.saved_bytes[node] for node in nodes if problem.saved_bytes)
        saved -= math.fsum(problem.recompute_bytes[node] for node in nodes if node in recompute)
        total += (problem.in_flight[stage] if problem.in_flight else 1) * saved
        if problem.workspace_bytes and nodes:
            total += max(problem.workspace_bytes[node] for node in nodes)
        if problem.boundary_factor:
            total += problem.boundary_factor[stage] * received[stage]
        result.append(total)
    return tuple(result)


def _violations(
    problem: ChainProblem,
    stages: list[list[int]],
    stage_of: Sequence[int],
    kind_of: Sequence[int],
    memory: tuple[float, ...],
) -> list[str]:
    broken = [
        f"edge ({before}, {after}) points backwards"
        for before, after in problem.edges
        if stage_of[before] > stage_of[after]
    ]
    broken += [
        f"node {node} is not in stage {stage}"
        for node, stage in problem.fixed
        if stage_of[node] != stage
    ]
    broken += _neighbours(problem, stages)
    if problem.kinds:
        used = [list(kind_of).count(kind) for kind in range(len(problem.kinds))]
        if used != [kind.count for kind in problem.kinds]:
            broken.append("the devices do not match their kinds")
    for stage, nodes in enumerate(stages):
        if not nodes:
            if not problem.allow_empty:
                broken.append(f"stage {stage} is empty")
            continue
        device = _kind(problem, kind_of, stage)
        if device.budget_bytes * (1 + TOLERANCE) < memory[stage]:
            broken.append(f"stage {stage} needs {memory[stage]:.0f} bytes")
        if set(device.excluded).intersection(nodes):
            broken.append(f"stage {stage} holds a node its device cannot run")
    return broken


def _neighbours(problem: ChainProblem, stages: list[list[int]]) -> list[str]:
    """Return which nodes share a stage though they must not."""
    broken = []
    for stage, nodes in enumerate(stages):
        held = set(nodes)
        broken += [
            f"stage {stage} holds nodes of {first} and {second}, which are to stay apart"
            for first, second in problem.apart
            if held.intersection(first) and held.intersection(second)
        ]
        broken += [
            f"node {node} is not alone in stage {stage}"
            for node in problem.alone
            if node in held and len(held) > 1
        ]
    return broken
