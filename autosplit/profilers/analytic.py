"""A profile of a device that is not here: from work, by the roofline model. Nothing runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch

from autosplit.hardware import DeviceSpec, Factors, Roofline, assumed, find, read_factors
from autosplit.journal import Journal
from autosplit.layers import Grouping
from autosplit.layers.estimate import Estimate
from autosplit.layers.kept import Kept, storage_of
from autosplit.layers.scratch import Scratch
from autosplit.layers.work import Work
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.flow import returned_values
from autosplit.profilers.summary import Findings
from autosplit.program import Program
from autosplit.tracers.base import Trace
from autosplit.types import DeviceInfo, Timing
from autosplit.units import format_rate, format_seconds, format_share

_FOREIGN = (
    "the factors were fitted on {fitted} and are applied to {modelled}: right only as far as both "
    "stay equally behind their data sheets"
)
_CUDA_MASK_BYTES = 1
"""A dropout mask of a GPU is one of truth values; a CPU keeps one of numbers."""


@dataclass(frozen=True)
class ModelledLayer:
    """What a layer costs by its work; ``kept`` holds the bytes of storages kept for backward."""

    forward_s: float
    backward_s: float
    weight_gradient_s: float
    kept: dict[Hashable, int]
    workspace_bytes: int


class LayerModel:
    """Computes what layers of a program cost on a device, at its example sizes.

    Parameters
    ----------
    program
        A traced model.
    roofline
        The device.
    training
        Whether there is a backward.
    """

    def __init__(self, program: Program, roofline: Roofline, *, training: bool) -> None:
        mask_bytes = _CUDA_MASK_BYTES if roofline.device.kind == "cuda" else None
        self._roofline = roofline
        self._training = training
        self._kept = Kept(program, mask_bytes)
        self._estimate = Estimate(program, training=training)
        self._of_inputs = Estimate(program, training=training, weights=False)
        self._scratch = Scratch(program)

    def layer(self, names: Sequence[str]) -> ModelledLayer:
        """Return what the named operations cost as one layer."""
        amounts = self._estimate.layer(names)
        backward_s = self._roofline.backward_s(amounts)
        input_s = self._roofline.backward_s(self._of_inputs.layer(names))
        kept = self._kept.layer(names) if self._training else {}
        return ModelledLayer(
            forward_s=self._roofline.forward_s(amounts),
            backward_s=backward_s,
            weight_gradient_s=max(0.0, backward_s - input_s),
            kept=kept,
            workspace_bytes=self._scratch.layer(names, kept, training=self._training),
        )


@PROFILERS.register("analytic")
class AnalyticProfiler:
    """Computes times from operations and bytes, and memory from what each backward keeps."""

    def findings(
        self,
        trace: Trace,
        grouping: Grouping,
        options: ProfileOptions,
        progress: Progress,
        journal: Journal,
    ) -> Findings:
        """Return time and memory of every layer on ``options.analytic``, at the sizes of ``trace``.

        Raises
        ------
        UsageError
            If the table has no such device.
        DataError
            If the factors cannot be read.
        """
        progress(0, 1, f"modelling {options.analytic}")
        program, training = trace.program, not options.inference
        roofline = roofline_of(options.analytic or "", options)
        model = LayerModel(program, roofline, training=training)
        found = [model.layer(layer.nodes) for layer in grouping.layers]
        work = Work(program)
        storage_bytes: dict[Hashable, int] = {}
        for each in found:
            for key, nbytes in each.kept.items():
                storage_bytes[key] = max(nbytes, storage_bytes.get(key, 0))
        return Findings(
            device=_described(roofline.device),
            forward=[Timing(each.forward_s) for each in found],
            backward=[Timing(each.backward_s) for each in found],
            weight_gradient_s=[each.weight_gradient_s for each in found],
            saved=[tuple(each.kept) for each in found],
            value_storage={node.name: storage_of(node) for node in program.nodes if node.tensors},
            storage_bytes=storage_bytes,
            workspace_bytes=[each.workspace_bytes for each in found],
            flops=[work.layer_flops(layer.nodes) for layer in grouping.layers],
            returned=returned_values(program) if training else frozenset(),
            whole=None,
            notes=_notes(roofline.device, roofline.factors, training),
            sources=["modelled"] * len(found),
        )


def roofline_of(device: str, options: ProfileOptions) -> Roofline:
    """Return a device of the table with the factors given, or those assumed.

    Raises
    ------
    UsageError
        If the table has no such device.
    DataError
        If the factors cannot be read.
    """
    factors = read_factors(options.factors) if options.factors else assumed()
    return Roofline(find(device), factors)


def _described(device: DeviceSpec) -> DeviceInfo:
    return DeviceInfo(
        kind=device.kind,
        name=device.name,
        threads=1,
        torch_version=str(torch.__version__),
        clock="model",
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
