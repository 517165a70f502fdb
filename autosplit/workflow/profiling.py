"""From a model to a profile."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from autosplit.journal import Journal
from autosplit.serialize import digest
from autosplit.types import ModelRef, Profile
from autosplit.workflow.calibrating import calibrated, refuse_uncalibrated
from autosplit.workflow.files import PathLike, as_profile
from autosplit.workflow.models import absolute, trace_of

if TYPE_CHECKING:
    from autosplit.hardware import DeviceSpec, Fit
    from autosplit.profilers import ProfileOptions

Progress: TypeAlias = Callable[[int, int, str], None]


def check(ref: ModelRef, options: ProfileOptions) -> None:
    """Refuse names that cannot be meant, before any work.

    Raises
    ------
    UsageError
        If there is no such dtype, device or folder, if there are more threads than processors,
        if nothing here compiles code, or if nothing is measured that could be calibrated.
    """
    from autosplit.modelspec import floating_dtype, huggingface
    from autosplit.profilers import compiling, environment

    refuse_uncalibrated(ref, options)
    for dtype in (ref.dtype, ref.autocast):
        if dtype is not None:
            floating_dtype(dtype)
    if ref.spec.startswith("hf:"):
        huggingface.refuse_missing(ref.spec[len("hf:") :])
    if options.analytic is None:
        device = environment.choose_device(options.device)
        environment.refuse_threads(options.threads)
        if options.compile:
            compiling.refuse_without_compiler(device)
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
    UsageError
        If it is to be calibrated and is not measured whole.
    DataError
        If ``partial`` holds results of another run.
    """
    from autosplit import profilers

    chosen = options or profilers.ProfileOptions()
    ref = ModelRef(spec=model) if isinstance(model, str) else model
    ref = dataclasses.replace(ref, spec=absolute(ref.spec), inference=chosen.inference)
    refuse_uncalibrated(ref, chosen)
    trace = trace_of(ref)
    journal = _journal(partial, force, digest(trace.program), ref, chosen)
    measured = profilers.profile(trace, options, progress, model=ref, journal=journal)
    if chosen.calibrate:
        measured = calibrated(measured, trace, chosen, progress, journal)
    return dataclasses.replace(measured, notes=(*trace.program.warnings, *measured.notes))


def sweep(
    model: ModelRef | str,
    sizes: Mapping[str, Sequence[int]],
    options: ProfileOptions | None = None,
    *,
    progress: Progress | None = None,
    partial: PathLike | None = None,
    force: bool = False,
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
    progress, partial, force
        As in ``profile``.

    Returns
    -------
    Profile
        The profile at the largest sizes; ``Profile.at`` gives those at others, and in between.

    Raises
    ------
    UsageError
        If a size cannot change, or the model does not run at one of them.
    DataError
        If ``partial`` holds results of another run.
    """
    from autosplit import profilers
    from autosplit.profilers import sweep as sweeping

    chosen = options or profilers.ProfileOptions()
    ref = ModelRef(spec=model) if isinstance(model, str) else model
    ref = dataclasses.replace(
        ref,
        spec=absolute(ref.spec),
        batch_size=max(sizes.get("batch", ())) if "batch" in sizes else ref.batch_size,
        inference=chosen.inference,
    )
    refuse_uncalibrated(ref, chosen)
    trace = trace_of(ref)
    run = (digest(trace.program), ref, chosen, {name: tuple(sizes[name]) for name in sorted(sizes)})
    journal = _journal(partial, force, *run)
    found = sweeping.sweep(trace, sizes, chosen, progress, model=ref, journal=journal)
    if chosen.calibrate:
        found = calibrated(found, trace, chosen, progress, journal)
    return dataclasses.replace(found, notes=(*trace.program.warnings, *found.notes))


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

    measured = as_profile(profile)
    named = "cpu" if measured.device.kind == "cpu" else measured.device.name
    spec = hardware.find(device or named)
    return spec, hardware.fit(measured, spec)


def _journal(path: PathLike | None, force: bool, *run: Any) -> Journal:
    """Return what is kept of a run, told from others by its inputs and the machine."""
    machine = (platform.node(), importlib.metadata.version("torch"))
    return Journal(None if path is None else Path(path), digest((run, machine)), force=force)
