"""From a profile to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autosplit.errors import DataError
from autosplit.serialize import digest, load
from autosplit.types import Plan, PlanRequest, Profile
from autosplit.workflow.files import PathLike, as_profile, at_batch, at_sizes
from autosplit.workflow.models import check_profile

if TYPE_CHECKING:
    from autosplit.baselines import Comparison
    from autosplit.readers import Workload, WorkloadPlan
    from autosplit.search import SearchResult
    from autosplit.simulate import Timeline


def plan(
    profile: Profile | PathLike,
    request: PlanRequest,
    *,
    batch_size: int | None = None,
    profiles: Mapping[str, Profile | PathLike] | None = None,
    cross_check: bool = False,
    improve: Plan | PathLike | None = None,
) -> Plan:
    """Find the best stage boundaries for a profile.

    Parameters
    ----------
    profile
        A profile, or the path of one.
    request
        Stages, devices, schedule and limits.
    batch_size
        Rows of a micro-batch, of a profile of several sizes; the largest where None.
    profiles
        The same model on other kinds of devices of the request's cluster, by kind.
    cross_check
        Let every solver answer and refuse answers that differ.
    improve
        A plan, or its path, to do better than; the answer says by how much.

    Raises
    ------
    InfeasibleError
        If no plan meets the request.
    """
    from autosplit import planner

    measured = at_batch(as_profile(profile), batch_size)
    others = {
        kind: at_batch(as_profile(other), batch_size) for kind, other in (profiles or {}).items()
    }
    given = improve if improve is None or isinstance(improve, Plan) else load(Plan, improve)
    found = planner.plan(measured, request, profiles=others, cross_check=cross_check, improve=given)
    return _with_source(found, measured, profile)


def search(
    profiles: Sequence[Profile | PathLike],
    request: PlanRequest,
    *,
    devices: int,
    global_batch: int,
    **choices: Any,
) -> SearchResult:
    """Find the best number of stages, replicas and micro-batches, and the best schedule.

    Parameters
    ----------
    profiles
        Profiles of one model at the batch sizes a micro-batch may have, or their paths; one of
        several sizes stands for all of them.
    request
        What stays as it is: memory, links, optimizer, wishes, limits.
    devices
        Devices at hand.
    global_batch
        Rows of a step.
    choices
        What to choose from, as in ``configurations.Space``: ``replicas`` (whether there may be
        several copies of a pipeline), ``schedules``, ``recompute``, ``stages``, ``microbatches``.

    Raises
    ------
    InfeasibleError
        If no configuration fits.
    """
    from autosplit import search as searching
    from autosplit.configurations import Space

    measured = [(each, given) for given in profiles for each in at_sizes(as_profile(given))]
    for found, given in measured:
        if found.model.batch_size is None:
            raise DataError(
                f"{given} does not say how many rows a micro-batch has",
                hint="profile the model with --batch-size",
            )
    space = Space(devices, global_batch, **choices)
    result = searching.search([found for found, _ in measured], request, space)
    best = next(
        _with_source(result.best, found, given)
        for found, given in measured
        if digest(found) == result.best.profile_digest
    )
    first, *others = result.candidates
    candidates = (dataclasses.replace(first, plan=best), *others)
    return dataclasses.replace(result, candidates=candidates)


def compare(
    profile: Profile | PathLike, request: PlanRequest, *, batch_size: int | None = None
) -> tuple[Comparison, ...]:
    """Return what plans made by hand would cost under the same request, at the same batch size."""
    from autosplit import baselines, constraints, graph, planner

    found = as_profile(profile)
    if found.sweep:
        found = at_batch(found, batch_size)
    layers = graph.build(found)
    model = planner.ordered_model(layers, request)
    return baselines.compare(model, constraints.read(layers, request))


def timeline(plan: Plan | PathLike, profile: Profile | PathLike | None = None) -> Timeline:
    """Return the step of a plan, played through event by event.

    Parameters
    ----------
    plan
        A plan, or the path of one.
    profile
        The profile it was made from; by default the file that the plan names.

    Raises
    ------
    DataError
        If the profile is not there, or not the one the plan was made from.
    """
    from autosplit import planner

    found = plan if isinstance(plan, Plan) else load(Plan, plan)
    source = profile_of(found) if profile is None else as_profile(profile)
    return planner.timeline(source, found)


def profile_of(plan: Plan) -> Profile:
    """Return the profile that a plan was made from.

    Raises
    ------
    DataError
        If the file that the plan names is not there, or has changed since.
    """
    if plan.profile_path is None:
        raise DataError("the plan does not say which profile it was made from")
    check_profile(plan)
    return at_batch(as_profile(plan.profile_path), plan.model.batch_size)


def place(
    workload: Workload,
    *,
    host_cpu: bool = True,
    solver: str = "auto",
    time_limit_s: float = 60.0,
    gap: float = 0.0,
    cross_check: bool = False,
) -> WorkloadPlan:
    """Place the nodes of a workload file on the devices that the file names."""
    from autosplit import readers

    return readers.plan_workload(
        workload,
        host_cpu=host_cpu,
        solver=solver,
        time_limit_s=time_limit_s,
        gap=gap,
        cross_check=cross_check,
    )


def _with_source(plan: Plan, profile: Profile, given: Profile | PathLike) -> Plan:
    """Keep in a plan what its export needs of the profile."""
    path = None if isinstance(given, Profile) else str(Path(given).resolve())
    nodes = tuple(profile.layer[name].nodes for name in plan.order)
    return dataclasses.replace(plan, nodes=nodes, profile_path=path)
