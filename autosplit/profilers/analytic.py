"""A profile of a device that is not here: from work, by the roofline model. Nothing runs."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from autosplit.errors import DataError
from autosplit.hardware import DeviceSpec, Factors, Roofline, assumed, find, read_factors
from autosplit.journal import Journal
from autosplit.layers import Grouping, group
from autosplit.layers.estimate import Estimate
from autosplit.layers.kept import Kept, storage_of
from autosplit.layers.scratch import Scratch
from autosplit.layers.work import Work
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.flow import returned_values
from autosplit.profilers.summary import Findings, summarise
from autosplit.program import Program
from autosplit.serialize import digest
from autosplit.tracers.base import Trace
from autosplit.types import DeviceInfo, ModelRef, Profile, Timing
from autosplit.units import format_rate, format_seconds, format_share

_FOREIGN = (
    "the factors were fitted on {fitted} and are applied to {modelled}: right only as far as both "
    "stay equally behind their data sheets"
)
_CUDA_MASK_BYTES = 1
"""A dropout mask of a GPU is one of truth values; a CPU keeps one of numbers."""


@PROFILERS.register("analytic")
class AnalyticProfiler:
    """Computes times from operations and bytes, and memory from what each backward keeps."""

    def profile(
        self,
        trace: Trace,
        options: ProfileOptions,
        model: ModelRef,
        progress: Progress,
        journal: Journal,
    ) -> Profile:
        """Return time and memory of every layer of ``trace`` on ``options.analytic``.

        Raises
        ------
        UsageError
            If the table has no such device.
        DataError
            If the model computes nothing, or the factors cannot be read.
        """
        grouping = group(trace.program, granularity=options.granularity)
        if not grouping.layers:
            raise DataError("the model computes nothing that could be planned")
        progress(0, 1, f"modelling {options.analytic}")
        return model_layers(trace.program, grouping, options, model)


def model_layers(
    program: Program, grouping: Grouping, options: ProfileOptions, model: ModelRef
) -> Profile:
    """Return the profile of some layers of a program at its example sizes, computed alone.

    Raises
    ------
    UsageError
        If the table has no such device.
    DataError
        If the factors cannot be read.
    """
    device = find(options.analytic or "")
    factors = read_factors(options.factors) if options.factors else assumed()
    training = not options.inference
    return summarise(
        program,
        grouping,
        _findings(program, grouping, Roofline(device, factors), training),
        model=model,
        fingerprint=digest(program),
        device=DeviceInfo(
            kind=device.kind,
            name=device.name,
            threads=1,
            torch_version=str(torch.__version__),
            clock="model",
        ),
        training=training,
    )


def _findings(program: Program, grouping: Grouping, roofline: Roofline, training: bool) -> Findings:
    mask_bytes = _CUDA_MASK_BYTES if roofline.device.kind == "cuda" else None
    kept = Kept(program, mask_bytes)
    estimate = Estimate(program, training=training)
    scratch = Scratch(program)
    work = Work(program)
    forward: list[Timing] = []
    backward: list[Timing] = []
    saved: list[tuple[Hashable, ...]] = []
    workspace: list[int] = []
    storage_bytes: dict[Hashable, int] = {}
    for layer in grouping.layers:
        amounts = estimate.layer(layer.nodes)
        forward.append(Timing(roofline.forward_s(amounts)))
        backward.append(Timing(roofline.backward_s(amounts)))
        held = kept.layer(layer.nodes) if training else {}
        for key, nbytes in held.items():
            storage_bytes[key] = max(nbytes, storage_bytes.get(key, 0))
        saved.append(tuple(held))
        workspace.append(scratch.layer(layer.nodes, held, training=training))
    return Findings(
        forward=forward,
        backward=backward,
        saved=saved,
        value_storage={node.name: storage_of(node) for node in program.nodes if node.tensors},
        storage_bytes=storage_bytes,
        workspace_bytes=workspace,
        flops=[work.layer_flops(layer.nodes) for layer in grouping.layers],
        returned=returned_values(program) if training else frozenset(),
        whole=None,
        notes=_notes(roofline.device, roofline.factors, training),
    )


def _notes(device: DeviceSpec, factors: Factors, training: bool) -> tuple[str, ...]:
    """Say what is modelled and what that rests on."""
    peak = f"{device.flops_per_s('float32') / 1e12:g} TFLOP/s in float32"
    shares = factors.efficiency.items()
    families = ", ".join(f"{name} {format_share(share)}" for name, share in shares)
    memory = "saved memory and workspace" if training else "workspace"
    foreign = factors.device not in ("", device.key)
    return (
        *((_FOREIGN.format(fitted=factors.device, modelled=device.key),) if foreign else ()),
        f"nothing was measured: times are modelled for {device.name} "
        f"({peak}, {format_rate(device.bytes_per_s)}; {device.source})",
        f"share of the peak, {factors.source}: {families}; "
        f"{format_seconds(factors.start_s)} to start an operation",
        f"{memory} are estimated from what torch's formulas keep; sizes of values and state "
        "are exact",
    )
