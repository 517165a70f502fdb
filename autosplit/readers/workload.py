"""A planning problem that comes from a file complete with its devices, and its answer."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal

from autosplit.checks import require
from autosplit.errors import AutosplitError, InfeasibleError
from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Solution
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.portfolio import solve
from autosplit.units import counted


@dataclass(frozen=True)
class Workload:
    """Operators with their times on given devices.

    Parameters
    ----------
    name
        What the file is called in messages.
    nodes
        For each node of the problem the names of the file's nodes that it holds.
    problem
        The problem over accelerators alone; its stages may stay empty.
    link
        Link of every device to the memory they share.
    forward_s, backward_s
        Times of each problem node on an accelerator.
    host_forward_s, host_backward_s
        Times on the host CPU.
    hosts
        How many host CPUs may serve as further devices.
    unsupported
        Problem nodes that run on the host alone.
    notes
        What a user should know of how the file was read.
    """

    name: str
    nodes: tuple[tuple[str, ...], ...]
    problem: ChainProblem
    link: Link
    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    host_forward_s: tuple[float, ...]
    host_backward_s: tuple[float, ...]
    hosts: int = 0
    unsupported: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        sizes = {len(self.nodes), self.problem.num_nodes, len(self.forward_s)}
        sizes |= {len(self.backward_s), len(self.host_forward_s), len(self.host_backward_s)}
        require(self, len(sizes) == 1, "nodes and times do not match")

    def posed(self, *, host_cpu: bool = True) -> ChainProblem:
        """Return the problem, with the host CPUs as further devices where asked for."""
        hosts = self.hosts if host_cpu else 0
        if not hosts and not self.unsupported:
            return self.problem
        count = self.problem.num_stages
        budget = self.problem.budget_bytes[0] if self.problem.budget_bytes else math.inf
        kinds = [DeviceKind(count=count, budget_bytes=budget, excluded=self.unsupported)]
        if hosts:
            work = zip(self.host_forward_s, self.host_backward_s, strict=True)
            kinds.append(DeviceKind(count=hosts, work_s=tuple(f + b for f, b in work), pays=False))
        stages = count + hosts
        return dataclasses.replace(
            self.problem,
            num_stages=stages,
            kinds=tuple(kinds),
            budget_bytes=(),
            links=(self.link,) * (stages - 1),
        )


@dataclass(frozen=True, slots=True)
class WorkloadStage:
    """One device with nodes: what it holds and how long that takes."""

    layers: tuple[str, ...]
    device: str
    forward_s: float
    backward_s: float
    communication_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """The answer to a workload.

    ``bottleneck_s`` is the largest load, which is also the time between two samples in steady
    state (``step_s``); ``bound_s`` a proven lower bound of it.
    """

    name: str
    status: Literal["optimal", "feasible"]
    bottleneck_s: float
    bound_s: float
    gap: float
    solver: str
    solver_s: float
    step_s: float
    stages: tuple[WorkloadStage, ...]
    notes: tuple[str, ...] = ()


def plan_workload(
    workload: Workload,
    *,
    host_cpu: bool = True,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    cross_check: bool = False,
) -> WorkloadPlan:
    """Place the nodes of a workload on its devices.

    Parameters
    ----------
    workload
        As read from a file.
    host_cpu
        Whether the host CPUs that the file offers may hold nodes.
    solver, time_limit_s, gap, cross_check
        As for ``solvers.solve``.

    Raises
    ------
    InfeasibleError
        If no placement exists.
    AutosplitError
        If none was found within the time limit.
    """
    if workload.unsupported and not (host_cpu and workload.hosts):
        raise InfeasibleError(
            f"{workload.nodes[workload.unsupported[0]][0]} runs on the host CPU alone",
            cause="there is no host CPU among the devices",
            hint="leave out --no-host-cpu, or raise maxCPUs in the file",
        )
    problem = workload.posed(host_cpu=host_cpu)
    answer = solve(problem, solver, time_limit_s, gap, cross_check)
    if answer.stage_of is None:
        _refuse(workload, problem, answer)
    return _plan(workload, problem, answer)


def _refuse(workload: Workload, problem: ChainProblem, answer: Solution) -> None:
    if answer.status == "infeasible":
        budget = workload.problem.budget_bytes[0] if workload.problem.budget_bytes else math.inf
        sizes = workload.problem.static_bytes
        largest = max(range(len(sizes)), key=sizes.__getitem__)
        raise InfeasibleError(
            f"no placement of {workload.name} fits {counted(problem.num_stages, 'device')}",
            cause=f"accelerators hold {budget:.0f} bytes each; the nodes need {sum(sizes):.0f}, "
            f"{workload.nodes[largest][0]} alone {sizes[largest]:.0f}",
            hint="raise maxSizePerFPGA or maxFPGAs in the file",
        )
    raise AutosplitError(
        f"no placement of {workload.name} was found in time",
        cause="; ".join(answer.notes) or None,
        hint="raise --time-limit",
    )


def _plan(workload: Workload, problem: ChainProblem, answer: Solution) -> WorkloadPlan:
    assert answer.stage_of is not None
    result = evaluate(problem, answer.stage_of, answer.kind_of)
    stages = []
    number = {0: 0, 1: 0}
    for stage in range(problem.num_stages):
        kind = answer.kind_of[stage] if answer.kind_of else 0
        held = [node for node, place in enumerate(answer.stage_of) if place == stage]
        index = number[kind]
        number[kind] += 1
        if not held:
            continue
        forward = workload.host_forward_s if kind else workload.forward_s
        backward = workload.host_backward_s if kind else workload.backward_s
        stages.append(
            WorkloadStage(
                layers=tuple(name for node in held for name in workload.nodes[node]),
                device=f"cpu {index}" if kind else f"accelerator {index}",
                forward_s=math.fsum(forward[node] for node in held),
                backward_s=math.fsum(backward[node] for node in held),
                communication_s=result.loads_s[stage] - result.work_s[stage],
                memory_bytes=round(result.memory_bytes[stage]),
            )
        )
    return WorkloadPlan(
        name=workload.name,
        status="optimal" if answer.status == "optimal" else "feasible",
        bottleneck_s=answer.objective_s,
        bound_s=answer.bound_s,
        gap=answer.gap,
        solver=answer.solver,
        solver_s=answer.solver_s,
        step_s=answer.objective_s,
        stages=tuple(stages),
        notes=(*workload.notes, *answer.notes),
    )
