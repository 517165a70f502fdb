"""The steps from a model to a verified pipeline, one function each.

The command line and the public API both call these. Everything heavy is imported inside, so
that planning never loads torch.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from autosplit.errors import DataError
from autosplit.serialize import SCHEMAS, digest, dump, load, parse_json, read_text
from autosplit.types import Plan, PlanRequest, Profile

PathLike: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int, str], None]


def profile(
    model: ModelRef | str,
    *,
    options: ProfileOptions | None = None,
    progress: Progress | None = None,
) -> Profile:
    """Trace a model and measure it layer by layer.

    Parameters
    ----------
    model
        ``FILE.py:NAME``, ``package.module:NAME``, ``hf:DIR``, or these with example inputs.
    options
        What is measured, where and how precisely.
    progress
        Called with steps done, all steps and what is being done.

    Raises
    ------
    TraceError
        If the model's forward cannot be recorded.
    """
    from autosplit import profilers
    from autosplit.modelspec import load_model
    from autosplit.tracers import trace

    ref = ModelRef(spec=model) if isinstance(model, str) else model
    wishes = options or profilers.ProfileOptions()
    return profilers.profile(trace(load_model(ref)), wishes, progress)


def plan(
    profile: Profile | PathLike, request: PlanRequest, *, cross_check: bool = False
) -> Plan:
    """Find the best stage boundaries for a profile.

    Parameters
    ----------
    profile
        A profile, or the path of one.
    request
        Stages, devices, schedule and limits.
    cross_check
        Let every solver answer and refuse answers that differ.

    Raises
    ------
    InfeasibleError
        If no plan meets the request.
    """
    from autosplit import planner

    path = None if isinstance(profile, Profile) else str(Path(profile).resolve())
    measured = profile if isinstance(profile, Profile) else load(Profile, profile)
    found = planner.plan(measured, request, cross_check=cross_check)
    nodes = tuple(measured.layer[name].nodes for name in found.order)
    return dataclasses.replace(found, nodes=nodes, profile_path=path)


def export(
    plan: Plan | PathLike, output: PathLike, *, target: str = "torch", force: bool = False
) -> tuple[Artifact, ...]:
    """Write the stages of a plan as a folder that runs by itself.

    Parameters
    ----------
    plan
        A plan, or the path of one.
    output
        Folder to write; written beside and renamed at the end.
    target
        Framework that will run the stages.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    DataError
        If the model or its profile has changed since the plan was made.
    """
    from autosplit import weights

    refuse_existing(output, force)
    built = _build(plan, target)
    weights.write_export(output, built.artifacts, built.trace, built.routing, force=force)
    return built.artifacts


def render(plan: Plan | PathLike, *, target: str = "torch") -> tuple[Artifact, ...]:
    """Return the text files that ``export`` would write."""
    return _build(plan, target).artifacts


def stale(plan: Plan | PathLike, folder: PathLike, *, target: str = "torch") -> tuple[str, ...]:
    """Return the text files of an export that are missing or not what ``plan`` gives."""
    return tuple(
        artifact.path
        for artifact in render(plan, target=target)
        if not _has_text(Path(folder) / artifact.path, artifact.text)
    )


def verify(
    folder: PathLike, *, distributed: bool = False, tolerance: float | None = None
) -> VerificationReport:
    """Run an export against the original model.

    Parameters
    ----------
    folder
        The export.
    distributed
        Run one process per stage instead of one for all.
    tolerance
        Largest difference that passes; None chooses by dtype.
    """
    from autosplit import verify as verification

    return verification.verify(folder, distributed=distributed, tolerance=tolerance)


def save(value: Profile | Plan, path: PathLike, *, force: bool = False) -> None:
    """Write a profile or plan to ``path``, which must not exist unless ``force``."""
    dump(value, path, force=force)


def read(path: PathLike) -> Profile | Plan:
    """Read a profile or plan, told apart by content; of an export its plan."""
    place = Path(path)
    if place.is_dir():
        place = place / "plan.json"
        if not place.exists():
            raise DataError(f"{path} is not an export", cause="it holds no plan.json")
    data = parse_json(read_text(place), str(place))
    schema = data.get("schema") if isinstance(data, dict) else None
    return load(Plan if schema == SCHEMAS[Plan][0] else Profile, place)


def _check_profile(plan: Plan) -> None:
    """Refuse a plan whose profile has changed since; one that is gone cannot be asked."""
    if plan.profile_path is None or not Path(plan.profile_path).exists():
        return
    if digest(load(Profile, plan.profile_path)) != plan.profile_digest:
        raise DataError(
            "the plan is stale",
            cause=f"{plan.profile_path} has changed since the plan was made",
            hint=f"autosplit plan {plan.profile_path}",
        )
