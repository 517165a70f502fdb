"""From a profile and a request to a plan: ask the solvers, judge by simulation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autosplit import advice, constraints, fit, graph, schedules, serialize
from autosplit.assign import Answer, Failure, assign
from autosplit.constraints import Constraints
from autosplit.cost import OPTIMIZER_COPIES, CostModel, LayerTimes, Place
from autosplit.deadline import Deadline
from autosplit.devices import Devices, link_of
from autosplit.errors import AutosplitError, DataError, UsageError
from autosplit.graph import Graph
from autosplit.judge import judged
from autosplit.simulate import Timeline, play
from autosplit.types import Plan, PlanRequest, Profile, StagePlan
from autosplit.units import counted, format_seconds, format_share


def plan(
    profile: Profile,
    request: PlanRequest,
    *,
    profiles: Mapping[str, Profile] | None = None,
    cross_check: bool = False,
    improve: Plan | None = None,
    explain: bool = True,
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
    improve
        A plan to do better than: it is the answer where the search finds none better in time.
    explain
        Whether to find out, where nothing fits, what would.

    Raises
    ------
    DataError
        If the plan to improve has other layers or another number of stages.
    UsageError
        If the request cannot be meant (unknown layer, schedule that cannot run the numbers).
    InfeasibleError
        If no plan meets it, saying what is missing.
    """
    started = time.monotonic()
    layers = graph.build(profile)
    deadline = Deadline.after(request.time_limit_s)
    task = Task(layers, _times(layers, profiles or {}))
    given = None if improve is None else task.given(request, improve)
    start = None if given is None else given.stage_of
    found = task.answer(request, deadline, cross_check=cross_check, explain=explain, start=start)
    found = _with_price_of_blocks(task, request, found, deadline)
    wishes = constraints.read(layers, request)
    if request.objective == "step" and not request.boundaries:
        found = judged(found, wishes, deadline)
    if given is not None:
        found = _no_worse(found, given, wishes)
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
    task = Task(layers, _times(layers, profiles or {}))
    answer = task.given(found.request, found)
    return play(answer.model, answer.cost)


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

    def answer(
        self,
        request: PlanRequest,
        deadline: Deadline,
        *,
        cross_check: bool = False,
        explain: bool = True,
        start: Sequence[int] | None = None,
    ) -> Answer:
        """Return the best plan for a request, or raise what ``plan`` raises.

        The search begins with the stages of ``start``, where they grant the wishes.
        """
        model, wishes, devices = self._pose(request)
        if start is not None:
            wishes = wishes.from_plan(start)
        attempt = self.attempt if explain else None
        fit.refuse_large_layer(model, request, attempt, deadline, devices)
        until = deadline.keeping(fit.RESERVE_S) if explain and model.bounded else deadline
        found = assign(model, wishes, request, until, devices=devices, cross_check=cross_check)
        if isinstance(found, Failure):
            raise fit.explain(found, model, request, attempt, deadline)
        return found

    def attempt(self, request: PlanRequest, rows: float = 1.0) -> Answer | None:
        """Return a plan for a request, with a share of the rows; None when none is found in time.

        The time limit of the request counts from here.
        """
        deadline = Deadline.after(request.time_limit_s)
        task = self if rows == 1.0 else replace(self, layers=fit.with_rows(self.layers, rows))
        try:
            model, wishes, devices = task._pose(request)
        except AutosplitError:
            return None
        found = assign(model, wishes, request, deadline, devices=devices, persist=False)
        return found if isinstance(found, Answer) else None

    def given(self, request: PlanRequest, plan: Plan) -> Answer:
        """Return what the stages of a plan cost under a request; nothing is proven of them.

        Raises
        ------
        DataError
            If the plan has other layers, or another number of stages than the request.
        """
        layers = self.layers
        if set(plan.order) != set(layers.index):
            raise DataError("the plan has other layers than the profile")
        if len(plan.stages) != request.stages:
            has = counted(len(plan.stages), "stage")
            raise DataError(f"the plan has {has}, not {request.stages}")
        ranks = {stage.rank: stage.device for stage in plan.stages}
        names = {device.name for device in request.cluster.devices} if request.cluster else set()
        order = [name for _, name in sorted(ranks.items()) if name is not None]
        if not names.issuperset(order):
            raise DataError("the plan is for other devices than the cluster has")
        model = ordered_model(layers, request, times=self.times, order=order)
        stage_of = [0] * len(layers)
        for number, stage in enumerate(plan.stages):
            for name in stage.layers:
                stage_of[layers.index[name]] = number
        again = frozenset(layers.index[name] for stage in plan.stages for name in stage.recompute)
        cost = model.evaluate(stage_of, again)
        return Answer(model, tuple(stage_of), again, cost, 0.0, "given")

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
        divided=request.sharding == "fsdp",
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
    devices.refuse_copies(model.schedule.ranks)
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


# ---------------------------------------------------------------- beside the best


def _with_price_of_blocks(
    task: Task, request: PlanRequest, found: Answer, deadline: Deadline
) -> Answer:
    """Say what it costs that no block is cut, against the best plan that may cut them."""
    if request.granularity != "block" or request.boundaries:
        return found
    free = None
    if not deadline.passed:
        freely = replace(request, granularity="layer", time_limit_s=deadline.left_s)
        free = task.attempt(freely)
    if free is None:
        note = "what it costs to cut between blocks only was not found out in time"
        return replace(found, notes=(*found.notes, note))
    spent, least = found.cost.objective_s, min(free.cost.objective_s, found.cost.objective_s)
    if spent <= least * (1 + 1e-9):
        note = "cutting between blocks only costs nothing"
    else:
        note = (
            f"cutting between blocks only costs {format_share(spent / least - 1)}: "
            f"{format_seconds(spent)} instead of {format_seconds(least)} ({request.objective})"
        )
    return replace(found, notes=(*found.notes, note))


def _no_worse(found: Answer, given: Answer, wishes: Constraints) -> Answer:
    """Return the better of a found plan and a given one that also meets the wishes."""
    new, old = found.cost.objective_s, given.cost.objective_s
    allowed = given.fits and wishes.met_by(given.stage_of)
    if allowed and old < new * (1 - 1e-9):
        note = "no better plan than the given one was found in time"
        bound_s = min(found.bound_s, old)
        return replace(given, bound_s=bound_s, notes=(*found.notes, note))
    if not allowed:
        note = "the given plan does not fit the devices or the wishes of this one"
    elif old <= new * (1 + 1e-9):
        note = "the given plan is as good as this one"
    else:
        gain = format_share(1 - new / old)
        note = (
            f"{gain} better than the given plan: {format_seconds(new)} after {format_seconds(old)}"
        )
    return replace(found, notes=(*found.notes, note))


# ---------------------------------------------------------------- the plan


def _assemble(profile: Profile, request: PlanRequest, answer: Answer, solver_s: float) -> Plan:
    model, cost = answer.model, answer.cost
    played = play(model, cost)
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
        stopped=None if answer.proven else answer.stopped,
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
