"""The steps from a model to a verified pipeline, one function each.

The command line and the public API both call these. Everything heavy is imported inside, so
that planning never loads torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autosplit.artifacts import refuse_folder
from autosplit.errors import AutosplitError, DataError
from autosplit.journal import Journal
from autosplit.serialize import SCHEMAS, digest, dump, load, parse_json, read_text
from autosplit.types import (
    Artifact,
    ExportedStage,
    ModelRef,
    Plan,
    PlanRequest,
    Profile,
    VerificationReport,
)
from autosplit.units import format_bytes

if TYPE_CHECKING:
    from autosplit.baselines import Comparison
    from autosplit.hardware import DeviceSpec, Fit
    from autosplit.profilers import ProfileOptions
    from autosplit.readers import Workload, WorkloadPlan
    from autosplit.search import SearchResult
    from autosplit.simulate import Timeline
    from autosplit.stages import Routing
    from autosplit.tracers import Trace

PathLike: TypeAlias = str | os.PathLike[str]
Progress: TypeAlias = Callable[[int, int, str], None]


def check(ref: ModelRef, options: ProfileOptions) -> None:
    """Refuse names that cannot be meant, before any work.

    Raises
    ------
    UsageError
        If there is no such dtype, device or folder.
    """
    from autosplit.modelspec import floating_dtype, huggingface
    from autosplit.profilers import environment

    for dtype in (ref.dtype, ref.autocast):
        if dtype is not None:
            floating_dtype(dtype)
    if ref.spec.startswith("hf:"):
        huggingface.refuse_missing(ref.spec[len("hf:") :])
    if options.analytic is None:
        environment.choose_device(options.device)
        return
    from autosplit import hardware

    hardware.find(options.analytic)
    if options.factors is not None:
        hardware.read_factors(options.factors)


def profile(
    model: ModelRef | str,
    options: ProfileOptions | None = None,
    *,
    progress: Progress | None = None,
    partial: PathLike | None = None,
    force: bool = False,
) -> Profile:
    """Trace a model and measure it layer by layer.

    Parameters
    ----------
    model
        ``FILE.py:NAME``, ``package.module:NAME`` or ``hf:DIR``, or such a spec with its example
        inputs.
    options
        What is measured, where and how precisely.
    progress
        Called with steps done, all steps and what is being done.
    partial
        File in which results are kept as they come: the same call goes on from there after it
        was cut short. Removed at the end by who keeps the profile.
    force
        Drop results of another run in that file.

    Raises
    ------
    TraceError
        If the model's forward cannot be recorded.
    DataError
        If ``partial`` holds results of another run.
    """
    from autosplit import profilers

    ref = ModelRef(spec=model) if isinstance(model, str) else model
    inference = options is not None and options.inference
    ref = dataclasses.replace(ref, spec=_absolute(ref.spec), inference=inference)
    trace = _trace(ref)
    journal = _journal(partial, force, digest(trace.program), ref, options)
    measured = profilers.profile(trace, options, progress, model=ref, journal=journal)
    notes = (*_own_batch(trace, ref), *trace.program.warnings, *measured.notes)
    return dataclasses.replace(measured, notes=notes)


def sweep(
    model: ModelRef | str,
    sizes: Mapping[str, Sequence[int]],
    options: ProfileOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Profile:
    """Profile a model at several sizes of its input, in one profile.

    Parameters
    ----------
    model
        As in ``profile``.
    sizes
        Values of sizes that may change: ``{"batch": (1, 2, 4), "seq": (128, 256)}``.
    options
        What is measured; its time limit is shared by all sizes.
    progress
        Called with steps done, all steps and what is being done.

    Returns
    -------
    Profile
        The profile at the largest sizes; ``Profile.at`` gives those at others, and in between.

    Raises
    ------
    UsageError
        If a size cannot change, or the model does not run at one of them.
    """
    from autosplit import profilers
    from autosplit.profilers import sweep as sweeping

    chosen = options or profilers.ProfileOptions()
    ref = ModelRef(spec=model) if isinstance(model, str) else model
    ref = dataclasses.replace(
        ref,
        spec=_absolute(ref.spec),
        batch_size=max(sizes.get("batch", ())) if "batch" in sizes else ref.batch_size,
        inference=chosen.inference,
    )
    trace = _trace(ref)
    found = sweeping.sweep(trace, sizes, chosen, progress, model=ref)
    return dataclasses.replace(found, notes=(*trace.program.warnings, *found.notes))


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

    measured = _at_batch(_profile(profile), batch_size)
    others = {
        kind: _at_batch(_profile(other), batch_size) for kind, other in (profiles or {}).items()
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
    replicas: bool = False,
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
    replicas
        Whether to try several copies of a pipeline, which exports cannot run yet.

    Raises
    ------
    InfeasibleError
        If no configuration fits.
    """
    from autosplit import search as searching

    measured = [(each, given) for given in profiles for each in _at_sizes(_profile(given))]
    for found, given in measured:
        if found.model.batch_size is None:
            raise DataError(
                f"{given} does not say how many rows a micro-batch has",
                hint="profile the model with --batch-size",
            )
    result = searching.search(
        [found for found, _ in measured],
        request,
        devices=devices,
        global_batch=global_batch,
        replicas=replicas,
    )
    best = next(
        _with_source(result.best, found, given)
        for found, given in measured
        if digest(found) == result.best.profile_digest
    )
    first, *others = result.candidates
    return searching.SearchResult((dataclasses.replace(first, plan=best), *others))


def compare(
    profile: Profile | PathLike, request: PlanRequest, *, batch_size: int | None = None
) -> tuple[Comparison, ...]:
    """Return what plans made by hand would cost under the same request, at the same batch size."""
    from autosplit import baselines, graph, planner

    found = _profile(profile)
    if found.sweep:
        found = _at_batch(found, batch_size)
    return baselines.compare(planner.ordered_model(graph.build(found), request))


def fit_device(profile: Profile | PathLike, device: str | None = None) -> tuple[DeviceSpec, Fit]:
    """Fit to a measured profile which share of a device's peak its operators reach.

    Parameters
    ----------
    profile
        A measured profile, or the path of one.
    device
        Name in the table of devices; by default that of the device the profile was measured on.

    Raises
    ------
    UsageError
        If the table has no such device.
    DataError
        If the profile was not measured.
    """
    from autosplit import hardware

    measured = _profile(profile)
    named = "cpu" if measured.device.kind == "cpu" else measured.device.name
    spec = hardware.find(device or named)
    return spec, hardware.fit(measured, spec)


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
    source = profile_of(found) if profile is None else _profile(profile)
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
    _check_profile(plan)
    return _at_batch(_profile(plan.profile_path), plan.model.batch_size)


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


def export(
    plan: Plan | PathLike,
    output: PathLike,
    *,
    target: str = "torch",
    weights: PathLike | None = None,
    convert_weights: bool = False,
    force: bool = False,
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
    weights
        Weights to write instead of those the model is built with: a ``.safetensors`` file, a
        ``state_dict`` of ``torch.save``, or a Hugging Face folder. They are copied one tensor
        at a time, and the model is built without memory for its parameters.
    convert_weights
        Convert floating-point tensors of ``weights`` to the model's dtype where they have
        another, instead of refusing them.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    DataError
        If the model or its profile has changed since the plan was made.
    AutosplitError
        If ``weights`` are damaged or not exactly the model's, or if the model was profiled on
        meta and does not fit into the memory of this machine.
    """
    from autosplit import weights as storage

    refuse_folder(output, force=force)
    source = None if weights is None else storage.open_weights(weights)
    trace_again = _trace_with_weights if source is None else _trace_without_weights
    trace, routing, artifacts = _build(plan, target, trace_again)
    storage.write_export(
        output, artifacts, trace, routing, source=source, convert=convert_weights, force=force
    )
    return artifacts


def merge_checkpoint(
    folder: PathLike,
    output: PathLike,
    *,
    weights: PathLike | None = None,
    max_shard_bytes: int | None = None,
    force: bool = False,
) -> None:
    """Write one model from the weights of an export's stages.

    Parameters
    ----------
    folder
        The export.
    output
        A ``.safetensors`` or ``.pt`` file; with ``max_shard_bytes`` a folder.
    weights
        Weights of its stages: those of the export, or a checkpoint of its training.
    max_shard_bytes
        Write a Hugging Face folder of shards that are at most this large.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If weights are missing or damaged, or copies of a tensor differ.
    """
    from autosplit import weights as storage

    config = _config_of(load(Plan, Path(folder) / "plan.json")) if max_shard_bytes else None
    storage.merge(
        folder,
        output,
        weights=weights,
        max_shard_bytes=max_shard_bytes,
        config=config,
        force=force,
    )


def split_checkpoint(
    folder: PathLike,
    weights: PathLike,
    output: PathLike,
    *,
    convert: bool = False,
    force: bool = False,
) -> None:
    """Write the weights of an export's stages from those of the whole model.

    Parameters
    ----------
    folder
        The export.
    weights
        What ``export`` takes as ``weights``.
    output
        Folder to write, for ``--weights`` of ``train.py``.
    convert
        Convert floating-point tensors to the model's dtype where they have another.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If ``weights`` are damaged or not exactly the model's.
    """
    from autosplit import weights as storage

    storage.split(folder, weights, output, convert=convert, force=force)


def recut_checkpoint(
    old: PathLike, folder: PathLike, output: PathLike, *, force: bool = False
) -> None:
    """Take over what one pipeline has trained into another pipeline of the same model.

    Parameters
    ----------
    old
        An export, or a checkpoint of its training; optimizer state comes along.
    folder
        The new export.
    output
        Folder to write, for ``--weights`` or ``--resume`` of the new ``train.py``.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    AutosplitError
        If the two are not of the same model, or files are missing or damaged.
    """
    from autosplit import weights as storage

    storage.recut(old, folder, output, force=force)


def render(plan: Plan | PathLike, *, target: str = "torch") -> tuple[Artifact, ...]:
    """Return the text files that ``export`` would write."""
    return _build(plan, target)[2]


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
    from autosplit import verification

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
    if schema == SCHEMAS[Plan][0]:
        return load(Plan, place)
    if schema != SCHEMAS[Profile][0]:
        raise DataError(
            f"{path} is neither a profile nor a plan",
            cause=f"its schema is {schema!r}" if schema else "it names no schema",
            hint="autosplit profile and autosplit plan write such files",
        )
    return load(Profile, place)


def read_export(folder: PathLike) -> tuple[ExportedStage, ...]:
    """Return what stands in an export folder, stage by stage."""
    place = Path(folder)
    routing = parse_json(read_text(place / "routing.json"), str(place / "routing.json"))
    rewrites = parse_json(read_text(place / "report.json"), str(place / "report.json"))
    try:
        return tuple(
            ExportedStage(
                index=index,
                lines=len(read_text(place / "stages" / f"stage_{index}.py").splitlines()),
                weights_bytes=sum(
                    path.stat().st_size for path in (place / "weights").glob(f"*_{index}.*")
                ),
                take=tuple(route["take"]),
                give=tuple(route["give"]),
                rewrites=len(rewrites["stages"][index]["rewrites"]),
            )
            for index, route in enumerate(routing["stages"])
        )
    except (KeyError, IndexError, TypeError):
        raise DataError(
            f"{folder} is not a whole export",
            cause="routing.json or report.json is not what export writes",
        ) from None


def read_profile(path: PathLike) -> Profile | Workload:
    """Read anything that can be planned: a profile, or a file of another tool."""
    from autosplit import readers

    return readers.read(path)


def _profile(profile: Profile | PathLike) -> Profile:
    if isinstance(profile, Profile):
        return profile
    found = read_profile(profile)
    if not isinstance(found, Profile):
        raise DataError(f"{profile} is no profile of a model", cause="it brings its own devices")
    return found


def _at_sizes(profile: Profile) -> list[Profile]:
    """Return a profile at each batch size it holds."""
    sizes = sorted({dict(point.sizes).get("batch", 0) for point in profile.sweep} - {0})
    return [_at_batch(profile, size) for size in sizes] or [profile]


def _at_batch(profile: Profile, batch_size: int | None) -> Profile:
    """Return a profile at a batch size, itself where that is its own."""
    if batch_size in (None, profile.model.batch_size):
        return profile
    return profile.at(batch_size=batch_size)


def _with_source(plan: Plan, profile: Profile, given: Profile | PathLike) -> Plan:
    """Keep in a plan what its export needs of the profile."""
    path = None if isinstance(given, Profile) else str(Path(given).resolve())
    nodes = tuple(profile.layer[name].nodes for name in plan.order)
    return dataclasses.replace(plan, nodes=nodes, profile_path=path)


def _absolute(spec: str) -> str:
    """Return a spec that means the same in any working directory."""
    if spec.startswith("hf:"):
        return f"hf:{Path(spec[3:]).resolve()}"
    file, colon, name = spec.rpartition(":")
    return f"{Path(file).resolve()}{colon}{name}" if file.endswith(".py") else spec


def _trace(ref: ModelRef) -> Trace:
    from autosplit.modelspec import load_model
    from autosplit.tracers import trace

    return trace(load_model(ref))


def _journal(path: PathLike | None, force: bool, *run: Any) -> Journal:
    """Return what is kept of a run, told from others by its inputs and the machine."""
    machine = (platform.node(), importlib.metadata.version("torch"))
    return Journal(None if path is None else Path(path), digest((run, machine)), force=force)


def _own_batch(trace: Trace, ref: ModelRef) -> tuple[str, ...]:
    """Return a remark on the rows of a micro-batch where nobody asked for a number of them."""
    batch = trace.program.symbol.get("batch")
    if batch is None or ref.batch_size is not None:
        return ()
    return (f"batch size {batch.example}, that of the example inputs: --batch-size sets another",)


def _with_weights(ref: ModelRef) -> ModelRef:
    """Return how to build a model off meta, if the memory of this machine holds it."""
    from autosplit.modelspec import load_model, meta

    if not ref.on_meta:
        return ref
    needed, free = meta.step_bytes(load_model(ref).model), meta.free_bytes()
    if free is not None and needed > free:
        raise AutosplitError(
            f"{ref.spec} does not fit into the memory of this machine",
            cause=f"a step of it needs {format_bytes(needed)}, {format_bytes(free)} are free; it "
            "was profiled on meta, and an export holds its weights",
            hint="export on a larger machine, or look at the text alone with --dry-run",
        )
    return dataclasses.replace(ref, on_meta=False)


def _trace_with_weights(plan: Plan) -> Trace:
    return _trace(_with_weights(plan.model))


def _trace_without_weights(plan: Plan) -> Trace:
    """Trace the model without memory for its parameters; with it where that does not work.

    It does not for a model that looks at its parameters while it is built.
    """
    from autosplit.modelspec import load_model, meta
    from autosplit.tracers import trace

    with contextlib.suppress(AutosplitError):
        with meta.without_parameters():
            loaded = load_model(dataclasses.replace(plan.model, on_meta=False))
        found = trace(loaded)
        others = (*loaded.model.buffers(), *found.constants.values())
        if digest(found.program) == plan.fingerprint and not any(each.is_meta for each in others):
            return found
    return _trace_with_weights(plan)


def _trace_model(plan: Plan) -> Trace:
    return _trace(plan.model)


def _config_of(plan: Plan) -> Path | None:
    """Return the ``config.json`` that a Hugging Face model was built from."""
    kind, _, folder = plan.model.spec.partition(":")
    path = Path(folder) / "config.json"
    return path if kind == "hf" and path.is_file() else None


def _build(
    plan: Plan | PathLike, target: str, trace_again: Callable[[Plan], Trace] = _trace_model
) -> tuple[Trace, Routing, tuple[Artifact, ...]]:
    """Trace the model of a plan again, cut it, and write its stages as text."""
    from autosplit import codegen, stages
    from autosplit.targets import TARGETS

    chosen = plan if isinstance(plan, Plan) else load(Plan, plan)
    _check_profile(chosen)
    trace = trace_again(chosen)
    _check_model(chosen, trace)
    specs, routing = stages.split(trace.program, chosen.stage_of_node, len(chosen.stages))
    sources = codegen.generate(trace.program, specs)
    exported = dataclasses.replace(chosen, model=dataclasses.replace(chosen.model, on_meta=False))
    return trace, routing, TARGETS[target].emit(exported, trace.program, routing, sources)


def _check_model(plan: Plan, trace: Trace) -> None:
    """Refuse a plan for another model than the one that is there now."""
    if digest(trace.program) != plan.fingerprint:
        raise DataError(
            "the plan is stale",
            cause=f"{plan.model.spec} is not the model it was made for any more",
            hint="profile and plan it again",
        )


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and read_text(path) == text


def _check_profile(plan: Plan) -> None:
    """Refuse a plan whose profile has changed since; one that is gone cannot be asked."""
    if plan.profile_path is None or not Path(plan.profile_path).exists():
        return
    source = load(Profile, plan.profile_path)
    if source.sweep:
        source = _at_batch(source, plan.model.batch_size)
    if digest(source) != plan.profile_digest:
        raise DataError(
            "the plan is stale",
            cause=f"{plan.profile_path} has changed since the plan was made",
            hint=f"autosplit plan {plan.profile_path}",
        )
