"""From a profile and a request to a plan: ask the solvers, judge by simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from autosplit import advice, chain, constraints, graph, schedules, serialize, solvers
from autosplit.constraints import Constraints
from autosplit.cost import OPTIMIZER_COPIES, CostModel, PlanCost
from autosplit.errors import AutosplitError, InfeasibleError, UsageError
from autosplit.graph import Graph
from autosplit.simulate import Timeline, simulate
from autosplit.solvers.base import Link, Solution
from autosplit.types import Plan, PlanRequest, Profile, StagePlan
from autosplit.units import format_bytes

_REPAIRS = 8
"""How often budgets are tightened for memory that the chain problem leaves out."""


def plan(profile: Profile, request: PlanRequest, *, cross_check: bool = False) -> Plan:
    """Return the best plan for a request.

    Parameters
    ----------
    profile
        The measured model.
    request
        Stages, schedule, devices and limits.
    cross_check
        Whether every solver answers, and a difference is an error.

    Raises
    ------
    UsageError
        If the request cannot be meant (unknown layer, schedule that cannot run the numbers).
    InfeasibleError
        If no plan meets it, saying what is missing.
    """
    if request.optimizer not in OPTIMIZER_COPIES:
        raise UsageError(
            f"unknown optimizer {request.optimizer!r}",
            hint=f"choose one of: {', '.join(sorted(OPTIMIZER_COPIES))}",
        )
    model = cost_model(graph.build(profile), request)
    wishes = constraints.read(model.graph, request.stages, request.pins)
    if math.isfinite(max(model.budgets_bytes)):
        advice.refuse_large_layer(model)
    answer = _solve(model, wishes, request, cross_check)
    return _assemble(profile, request, model, answer)


def cost_model(layers: Graph, request: PlanRequest) -> CostModel:
    """Return the cost model of a request with devices that are all alike.

    Raises
    ------
    UsageError
        If the schedule cannot run these stages and micro-batches.
    """
    schedule = schedules.make(request.schedule, request.stages, request.microbatches)
    budget = math.inf if request.memory_bytes is None else float(request.memory_bytes)
    rate = request.link_bytes_per_s
    link = Link(1 / rate if rate else 0.0, request.latency_s)
    return CostModel(
        graph=layers,
        schedule=schedule,
        optimizer=request.optimizer,
        speeds=(1.0,) * request.stages,
        budgets_bytes=(budget,) * request.stages,
        links=(link,) * (request.stages - 1),
        overlap=request.overlap,
        objective=request.objective,
    )


# ---------------------------------------------------------------- solving


@dataclass(frozen=True, slots=True)
class _Answer:
    """A plan that fits, with what is proven about it."""

    stage_of: tuple[int, ...]
    cost: PlanCost
    bound_s: float
    proven: bool
    solver: str
    solver_s: float
    notes: tuple[str, ...]


def _solve(
    model: CostModel, wishes: Constraints, request: PlanRequest, cross_check: bool
) -> _Answer:
    """Solve, and solve again with tighter budgets where the plan found does not fit.

    The chain problem leaves out some memory (see ``chain``). Its first answer bounds every
    plan; an answer under tighter budgets is a plan, but no proof.
    """
    started = time.monotonic()
    deadline = started + request.time_limit_s
    first: Solution | None = None
    budgets = model.budgets_bytes
    for _ in range(_REPAIRS):
        tightened = replace(model, budgets_bytes=budgets)
        solution = solvers.solve(
            chain.problem(tightened, wishes.groups, fixed=wishes.fixed),
            solver=request.solver,
            time_limit_s=max(1.0, deadline - time.monotonic()),
            gap=request.gap,
            cross_check=cross_check,
        )
        first = first or solution
        if solution.stage_of is None:
            break
        stage_of = _by_layer(wishes, solution.stage_of)
        cost = model.evaluate(stage_of)
        excess = _excess(model, cost)
        if not any(excess):
            return _answer(model, first, solution, stage_of, cost, time.monotonic() - started)
        budgets = tuple(max(0.0, b - e) for b, e in zip(budgets, excess, strict=True))
    raise _no_plan(model, request, solution)


def _by_layer(wishes: Constraints, stage_of: Iterable[int]) -> tuple[int, ...]:
    placed = {
        layer: stage
        for group, stage in zip(wishes.groups, stage_of, strict=True)
        for layer in group
    }
    return tuple(placed[layer] for layer in range(len(placed)))


def _excess(model: CostModel, cost: PlanCost) -> tuple[float, ...]:
    """Return the bytes by which each stage must shrink so that its rank fits."""
    over = [
        max(0.0, used - model.budgets_bytes[rank])
        for rank, used in enumerate(model.rank_memory(cost))
    ]
    chunks = model.schedule.chunks
    return tuple(
        over[model.schedule.rank_of(stage)] / chunks for stage in range(model.schedule.stages)
    )


def _answer(
    model: CostModel,
    first: Solution,
    solution: Solution,
    stage_of: tuple[int, ...],
    cost: PlanCost,
    solver_s: float,
) -> _Answer:
    if model.schedule.chunks == 1:
        bound = min(first.bound_s, cost.objective_s)
    else:
        # The chain problem knows no ranks with several stages: only even shares are a bound.
        share = model.single_s / (sum(model.speeds) / model.schedule.chunks)
        bound = model.even_bound_s(share)
    tolerance = 1e-9 * cost.objective_s
    return _Answer(
        stage_of=stage_of,
        cost=cost,
        bound_s=bound,
        proven=cost.objective_s <= bound + tolerance,
        solver=solution.solver,
        solver_s=solver_s,
        notes=solution.notes,
    )


def _no_plan(model: CostModel, request: PlanRequest, solution: Solution) -> AutosplitError:
    stages = model.schedule.stages
    budget = request.memory_bytes
    if solution.status == "unknown" or budget is None:
        return AutosplitError(
            f"no {stages}-stage plan found in {request.time_limit_s:g} s",
            cause="the solver stopped at its limit before the first plan",
            hint="raise --time-limit",
        )
    return InfeasibleError(
        f"no {stages}-stage plan fits {format_bytes(budget)} per device",
    )


# ---------------------------------------------------------------- the plan


def _assemble(profile: Profile, request: PlanRequest, model: CostModel, answer: _Answer) -> Plan:
    cost = answer.cost
    timeline = simulate(cost, model.schedule, training=model.graph.training, overlap=model.overlap)
    objective = cost.objective_s
    return Plan(
        model=profile.model,
        fingerprint=profile.fingerprint,
        profile_digest=serialize.digest(profile),
        request=request,
        order=tuple(layer.name for layer in model.graph.layers),
        stages=tuple(
            _stage(model, cost, timeline, stage) for stage in range(model.schedule.stages)
        ),
        status="optimal" if answer.proven else "feasible",
        solver=answer.solver,
        objective_s=objective,
        bottleneck_s=cost.bottleneck_s,
        bound_s=answer.bound_s,
        gap=max(0.0, (objective - answer.bound_s) / objective) if objective else 0.0,
        solver_s=answer.solver_s,
        step_s=timeline.step_s,
        single_s=request.microbatches * model.single_s / max(model.speeds),
        notes=(*advice.remarks(model, cost, timeline), *answer.notes),
    )


def _stage(model: CostModel, cost: PlanCost, timeline: Timeline, stage: int) -> StagePlan:
    found = cost.stages[stage]
    rank = model.schedule.rank_of(stage)
    forward = cost.boundaries[stage].forward_s if stage < len(cost.boundaries) else 0.0
    backward = cost.boundaries[stage - 1].backward_s if stage else 0.0
    return StagePlan(
        layers=tuple(model.graph.layers[layer].name for layer in found.layers),
        rank=rank,
        device=None,
        forward_s=found.forward_s,
        backward_s=found.backward_s,
        send_s=forward + backward,
        in_flight=model.schedule.in_flight[stage] if model.graph.training else 1,
        memory=found.memory,
        idle=timeline.idle(rank),
    )
