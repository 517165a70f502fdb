"""From a profile and a request to a plan: ask the solvers, judge by simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosplit import advice, constraints, fit, graph, schedules, serialize
from autosplit.assign import Answer, Failure, assign
from autosplit.constraints import Constraints
from autosplit.cost import OPTIMIZER_COPIES, CostModel, LayerTimes, Place, PlanCost
from autosplit.devices import Devices, link_of
from autosplit.errors import AutosplitError, DataError, UsageError
from autosplit.graph import Graph
from autosplit.simulate import Timeline, simulate
from autosplit.types import Plan, PlanRequest, Profile, StagePlan


def plan(
    profile: Profile,
    request: PlanRequest,
    *,
    profiles: Mapping[str, Profile] | None = None,
    cross_check: bool = False,
) -> Plan:
    """Return the best plan for a request.

    Parameters
    ----------
    profile
        The measured model.
    request
        Stages, schedule, devices and limits.
    profiles
        The same model measured on some kinds of devices of the cluster, by kind.
    cross_check
        Whether every solver answers, and a difference is an error.

    Raises
    ------
    UsageError
        If the request cannot be meant (unknown layer, schedule that cannot run the numbers).
    InfeasibleError
        If no plan meets it, saying what is missing.
    """
    started = time.monotonic()
    layers = graph.build(profile)
    task = Task(layers, _times(layers, profiles or {}))
    found = task.answer(request, cross_check=cross_check)
    return _assemble(profile, request, found, time.monotonic() - started)


def timeline(
    profile: Profile, found: Plan, *, profiles: Mapping[str, Profile] | None = None
) -> Timeline:
    """Return the step of a plan, played through event by event.

    Parameters
    ----------
    profile, profiles
        What the plan was made from.
    found
        The plan.

    Raises
    ------
    DataError
        If the plan was made for another profile.
    """
    if serialize.digest(profile) != found.profile_digest:
        raise DataError(
            "the plan was made for another profile",
            hint="plan again: autosplit plan PROFILE",
        )
    layers = graph.build(profile)
    ranks = {stage.rank: stage.device for stage in found.stages}
    model = ordered_model(
        layers,
        found.request,
        times=_times(layers, profiles or {}),
        order=[name for _, name in sorted(ranks.items()) if name is not None],
    )
    stage_of = [0] * len(layers)
    for number, stage in enumerate(found.stages):
        for name in stage.layers:
            stage_of[layers.index[name]] = number
    again = {layers.index[name] for stage in found.stages for name in stage.recompute}
    return _play(model, model.evaluate(stage_of, again))


@dataclass(frozen=True)
class Task:
    """A model to plan for; requests may change.

    Parameters
    ----------
    layers
        The graph of its profile.
    times
        Times of its layers on kinds of devices that were measured apart.
    """

    layers: Graph
    times: Mapping[str, LayerTimes]

    def answer(self, request: PlanRequest, *, cross_check: bool = False) -> Answer:
        """Return the best plan for a request, or raise what ``plan`` raises."""
        model, wishes, devices = self._pose(request)
        fit.refuse_large_layer(model, devices)
        found = assign(model, wishes, request, devices=devices, cross_check=cross_check)
        if isinstance(found, Failure):
            raise fit.explain(found, model, request, self.attempt)
        return found

    def attempt(self, request: PlanRequest) -> Answer | None:
        """Return a plan for a request, or None when there is none."""
        try:
            model, wishes, devices = self._pose(request)
        except AutosplitError:
            return None
        found = assign(model, wishes, request, devices=devices)
        return found if isinstance(found, Answer) else None

    def _pose(self, request: PlanRequest) -> tuple[CostModel, Constraints, Devices | None]:
        """Return the cost model, the wishes, and the devices whose order is free."""
        model = ordered_model(self.layers, request, times=self.times)
        wishes = constraints.read(self.layers, request)
        # Solvers order devices that run one stage each; with several the file's order counts.
        if request.cluster is None or model.schedule.chunks > 1:
            return model, wishes, None
        return model, wishes, Devices(request.cluster, request, self.times)


def cost_model(layers: Graph, request: PlanRequest) -> CostModel:
    """Return the cost model of a request as if its devices were all alike.

    Raises
    ------
    UsageError
        If the schedule cannot run these numbers, or the optimizer is unknown.
    """
    if request.optimizer not in OPTIMIZER_COPIES:
        raise UsageError(
            f"unknown optimizer {request.optimizer!r}",
            hint=f"choose one of: {', '.join(sorted(OPTIMIZER_COPIES))}",
        )
    schedule = schedules.make(request.schedule, request.stages, request.microbatches, request.ranks)
    budget = math.inf if request.memory_bytes is None else float(request.memory_bytes)
    link = link_of(request.link_bytes_per_s, request.latency_s)
    return CostModel(
        graph=layers,
        schedule=schedule,
        optimizer=request.optimizer,
        places=(Place(budget_bytes=budget),) * request.stages,
        links=(link,) * (request.stages - 1),
        overlap=request.overlap,
        objective=request.objective,
        replicas=request.replicas,
        replica_link=link,
    )


def ordered_model(
    layers: Graph,
    request: PlanRequest,
    *,
    times: Mapping[str, LayerTimes] | None = None,
    order: Sequence[str] = (),
) -> CostModel:
    """Return the cost model of a request with its devices in a given order.

    Parameters
    ----------
    layers, request
        What runs, and what was asked for.
    times
        Times of the layers on kinds of devices that were measured apart.
    order
        Name of the device of each rank; empty for the order of the cluster.

    Raises
    ------
    UsageError
        If there are fewer devices than ranks.
    """
    model = cost_model(layers, request)
    if request.cluster is None:
        return model
    devices = Devices(request.cluster, request, times or {})
    next(devices.mixes(model.schedule.ranks))
    named = {device.name: device for device in request.cluster.devices}
    ordered = [named[name] for name in order] or list(request.cluster.devices)
    places, links = devices.in_order(model.schedule, ordered)
    return replace(model, places=places, links=links)


def _times(layers: Graph, profiles: Mapping[str, Profile]) -> dict[str, LayerTimes]:
    """Return the times of the layers on each kind of device that has a profile of its own."""
    found: dict[str, LayerTimes] = {}
    names = [layer.name for layer in layers.layers]
    for kind, profile in profiles.items():
        other = graph.build(profile)
        if [layer.name for layer in other.layers] != names:
            raise DataError(
                f"the profile for {kind} has other layers",
                cause="it is of another model, or of other inputs",
                hint="profile the same model with the same options on that device",
            )
        found[kind] = LayerTimes(other)
    return found


# ---------------------------------------------------------------- the plan


def _play(model: CostModel, cost: PlanCost) -> Timeline:
    return simulate(cost, model.schedule, training=model.graph.training, overlap=model.overlap)


def _assemble(profile: Profile, request: PlanRequest, answer: Answer, solver_s: float) -> Plan:
    model, cost = answer.model, answer.cost
    played = _play(model, cost)
    objective = cost.objective_s
    bound = min(answer.bound_s, objective)
    return Plan(
        model=profile.model,
        fingerprint=profile.fingerprint,
        profile_digest=serialize.digest(profile),
        request=request,
        order=tuple(layer.name for layer in model.graph.layers),
        stages=tuple(_stage(answer, played, stage) for stage in range(model.schedule.stages)),
        status="optimal" if answer.proven else "feasible",
        solver=answer.solver,
        objective_s=objective,
        bottleneck_s=cost.bottleneck_s,
        bound_s=objective if answer.proven else bound,
        gap=0.0 if answer.proven else (objective - bound) / objective,
        solver_s=solver_s,
        step_s=played.step_s,
        sync_s=cost.sync_s,
        single_s=request.replicas * request.microbatches * model.single_s,
        notes=(*advice.remarks(model, cost, len(answer.recompute)), *answer.notes),
    )


def _stage(answer: Answer, played: Timeline, stage: int) -> StagePlan:
    model, cost = answer.model, answer.cost
    found = cost.stages[stage]
    rank = model.schedule.rank_of(stage)
    forward = cost.boundaries[stage].forward_s if stage < len(cost.boundaries) else 0.0
    backward = cost.boundaries[stage - 1].backward_s if stage else 0.0
    names = [layer.name for layer in model.graph.layers]
    return StagePlan(
        layers=tuple(names[layer] for layer in found.layers),
        rank=rank,
        device=model.places[stage].name,
        forward_s=found.forward_s,
        backward_s=found.backward_s,
        send_s=forward + backward,
        in_flight=model.schedule.in_flight[stage] if model.graph.training else 1,
        memory=found.memory,
        idle=played.idle(rank),
        recompute=tuple(names[layer] for layer in found.layers if layer in answer.recompute),
    )
