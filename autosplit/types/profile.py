"""A model measured layer by layer, and where the numbers come from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

from autosplit.checks import require, require_finite, require_known, require_unique
from autosplit.errors import UsageError
from autosplit.program import DTYPE_BYTES, Dim
from autosplit.sizes import evaluate
from autosplit.types.calibration import Calibration
from autosplit.types.sweep import LayerSample, SweepPoint, mixture
from autosplit.types.work import OperatorWork


@dataclass(frozen=True, slots=True)
class ModelRef:
    """How to build the model and its example inputs again.

    Parameters
    ----------
    spec
        ``FILE.py:NAME``, ``package.module:NAME`` or ``hf:DIR``; file paths are absolute.
    batch_size
        Rows in one micro-batch; None leaves the batch of the example inputs as it is.
    inputs
        Overrides as typed (``ids=2x128:int64``).
    task
        Hugging Face task; None elsewhere.
    dtype
        dtype the model is cast to; None leaves it as built.
    autocast
        dtype that the forward runs in under autocast; None leaves it as written.
    inference
        Whether the model is put into evaluation mode; else it stays as built.
    on_meta
        Whether the model is built on the meta device: with shapes but without memory for its
        weights.
    """

    spec: str
    batch_size: int | None = None
    inputs: tuple[str, ...] = ()
    task: str | None = None
    dtype: str | None = None
    autocast: str | None = None
    inference: bool = False
    on_meta: bool = False

    def __post_init__(self) -> None:
        require_finite(self, "batch_size", minimum=1)


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The device on which times were measured.

    Parameters
    ----------
    kind
        "cpu" or "cuda".
    name
        As the device names itself.
    threads
        Threads of intra-operator parallelism (CPU).
    torch_version
        Version of torch.
    clock
        What was read: "thread" (CPU time of one thread), "wall", "event" (CUDA events),
        "file" (times came from a file of another tool) or "model" (nothing was measured: times
        follow from work and a table of devices).
    compiled
        Whether each layer was compiled (``torch.compile``) before it was timed.
    """

    kind: str
    name: str
    threads: int
    torch_version: str
    clock: Literal["thread", "wall", "event", "file", "model"]
    compiled: bool = False


# ---------------------------------------------------------------- profile

Source: TypeAlias = Literal["measured", "scaled", "modelled"]
"""Where the times of a layer come from."""


@dataclass(frozen=True, slots=True)
class Timing:
    """A measured time.

    Parameters
    ----------
    median_s
        The estimate to plan with, in seconds.
    spread_s
        Interquartile range of the samples, in seconds.
    samples
        How many samples there were.
    """

    median_s: float
    spread_s: float = 0.0
    samples: int = 1

    def __post_init__(self) -> None:
        require_finite(self, "median_s", "spread_s")
        require_finite(self, "samples", minimum=1)


@dataclass(frozen=True, slots=True)
class StorageProfile:
    """Memory that backward keeps, known by its storage so that views count once."""

    index: int
    nbytes: int

    def __post_init__(self) -> None:
        require_finite(self, "nbytes")


@dataclass(frozen=True, slots=True)
class ValueProfile:
    """A tensor that leaves the layer that made it, or a model input.

    Parameters
    ----------
    name
        Node name in the program.
    producer
        Layer that makes it; None for a model input.
    consumers
        Layers that read it, in running order.
    nbytes
        Bytes for one micro-batch.
    shape, dtype
        As in the program.
    needs_grad
        Whether a gradient comes back for it in training.
    output
        Whether the model returns it.
    storage
        Storage it lives in, as in ``Profile.storages``; None when backward keeps nothing of it.
    made_again
        Whether later stages make it themselves, since that costs less than sending it: a mask,
        positions, a rotary table.
    """

    name: str
    producer: str | None
    consumers: tuple[str, ...]
    nbytes: int
    shape: tuple[Dim, ...]
    dtype: str
    needs_grad: bool
    output: bool = False
    storage: int | None = None
    made_again: bool = False

    def __post_init__(self) -> None:
        require_finite(self, "nbytes")
        grad = self.made_again and self.needs_grad
        require(self, not grad, "a value with a gradient cannot be made again")


@dataclass(frozen=True, slots=True)
class StateProfile:
    """A parameter or buffer and the layers that use it (more than one when it is shared)."""

    name: str
    kind: Literal["parameter", "buffer", "constant"]
    nbytes: int
    trainable: bool
    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        require_finite(self, "nbytes")


@dataclass(frozen=True, slots=True)
class LayerProfile:
    """The smallest piece that the planner moves: a convex group of operations.

    Parameters
    ----------
    name
        Unique and readable ("h.3.attn"); a second group of that path is "h.3.attn#2".
    module
        Deepest module that contains all of it ("" for the root).
    block
        Outermost numbered list element that contains it ("h.3"); None outside of blocks.
    structure
        Signature: equal for layers with the same operations, shapes, dtypes and constants.
    nodes
        Names of its operations in the program, in running order.
    forward, backward
        Time for one micro-batch.
    saved
        Storages kept for backward (indices into ``Profile.storages``), parameters excluded.
    workspace_bytes
        Largest transient memory of its forward or backward beyond inputs, outputs and saved.
    flops
        Floating-point operations of the forward; None where unknown.
    work
        What its operations compute and move, by family; empty where unknown.
    cache_bytes
        Keys and values that generation keeps, for one token of one row.
    layer
        Layer that it is a part of, in a profile of single operations; None in one of layers.
    weight_gradient_s
        Part of the backward that makes gradients of parameters. No other stage waits for it, so
        zero-bubble schedules put it off. 0 where there is none, or where it is not known.
    source
        Where its times come from: "measured"; "scaled" from smaller micro-batches, where memory
        does not hold this one; or "modelled" from its work.
    """

    name: str
    module: str
    block: str | None
    structure: str
    nodes: tuple[str, ...]
    forward: Timing
    backward: Timing
    saved: tuple[int, ...] = ()
    workspace_bytes: int = 0
    flops: int | None = None
    work: tuple[OperatorWork, ...] = ()
    cache_bytes: int = 0
    layer: str | None = None
    weight_gradient_s: float = 0.0
    source: Source = "measured"

    def __post_init__(self) -> None:
        require_finite(self, "workspace_bytes", "flops", "cache_bytes", "weight_gradient_s")
        within = self.weight_gradient_s <= self.backward.median_s
        require(self, within, "weight_gradient_s is above backward.median_s")


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The whole step, timed in the same repetitions as the layers.

    ``ratio`` is the plain sum over layers divided by the whole; ``offset_s`` is the cost of
    entering one layer alone, by which sums over consecutive layers are corrected. Both are of
    the later micro-batches of a step; ``first_s`` is the whole of its first one, which finds no
    gradients to add to, or None where it was not told apart.
    """

    forward_s: float
    backward_s: float
    ratio: float
    offset_s: float
    first_s: float | None = None

    def __post_init__(self) -> None:
        require_finite(self, "forward_s", "backward_s", "ratio", "offset_s", "first_s")


@dataclass(frozen=True)
class Profile:
    """A model measured layer by layer.

    ``layers`` stand in a topological order of the program. ``fingerprint`` identifies the
    traced program; ``order_edges`` are ``(before, after)`` pairs of layers that no value
    connects but whose order matters (in-place writes). ``sweep`` holds the same layers at other
    sizes of the input, all combinations of them. ``sizes`` are ``(symbol, value)`` of those
    that may change and for which the rest is told. ``calibration`` tells how exported code runs
    against these layers, where that was measured.
    """

    model: ModelRef
    fingerprint: str
    device: DeviceInfo
    layers: tuple[LayerProfile, ...]
    values: tuple[ValueProfile, ...]
    states: tuple[StateProfile, ...]
    storages: tuple[StorageProfile, ...] = ()
    order_edges: tuple[tuple[str, str], ...] = ()
    whole: WholeModel | None = None
    training: bool = True
    notes: tuple[str, ...] = ()
    sweep: tuple[SweepPoint, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        names = [layer.name for layer in self.layers]
        require(self, bool(names), "a profile needs at least one layer")
        require_unique(self, "layer", names)
        require_unique(self, "value", (value.name for value in self.values))
        require_unique(self, "state", (state.name for state in self.states))
        known = set(names)
        for value in self.values:
            require_known(self, f"consumer of {value.name}", value.consumers, known)
            if value.producer is not None:
                require_known(self, f"producer of {value.name}", (value.producer,), known)
        for state in self.states:
            require_known(self, f"layer of {state.name}", state.layers, known)
        for pair in self.order_edges:
            require_known(self, "layer of an order edge", pair, known)
        for point in self.sweep:
            whole = len(point.layers) == len(names)
            whole = whole and len(point.storage_bytes) == len(self.storages)
            require(self, whole, f"the sweep at {dict(point.sizes)} has not every layer")

    @cached_property
    def layer(self) -> dict[str, LayerProfile]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}

    def at(self, *, batch_size: int | None = None, **sizes: int) -> Profile:
        """Return the profile that the model has at other sizes of its input.

        Parameters
        ----------
        batch_size
            Rows of a micro-batch.
        sizes
            Values of other symbols of the sweep (``seq=96``). Each lies within the measured
            ones, and is the largest of them where it is not given.

        Returns
        -------
        Profile
            Bytes of values follow from their shapes; times, saved memory and workspace are
            those of the sweep at measured sizes, and lie on the line between neighbours
            elsewhere.

        Raises
        ------
        UsageError
            If there is no sweep, or a size lies outside of it.
        """
        if not self.sweep:
            raise UsageError(
                "the profile is of one size of the input",
                hint="profile with --batch-size 1,2,4,8 or --seq-len 128,256",
            )
        known = {
            name: max(point.size(name) for point in self.sweep) for name, _ in self.sweep[0].sizes
        }
        if batch_size is not None:
            sizes["batch"] = batch_size
        if unknown := sorted(set(sizes) - set(known)):
            raise UsageError(
                f"the model has no size {unknown[0]!r}", hint=f"it has: {', '.join(known)}"
            )
        wanted = {**known, **sizes}
        near = mixture(self.sweep, wanted)
        return replace(
            self,
            model=replace(self.model, batch_size=wanted.get("batch", self.model.batch_size)),
            layers=tuple(
                _resized(layer, [(point.layers[index], share) for point, share in near])
                for index, layer in enumerate(self.layers)
            ),
            values=tuple(_resized_value(value, wanted) for value in self.values),
            storages=tuple(
                replace(
                    storage,
                    nbytes=round(sum(point.storage_bytes[index] * share for point, share in near)),
                )
                for index, storage in enumerate(self.storages)
            ),
            whole=None,
            sweep=(),
            sizes=tuple(wanted.items()),
        )


def _resized(layer: LayerProfile, near: Sequence[tuple[LayerSample, float]]) -> LayerProfile:
    """Return a layer with the costs of a mixture; its work is not known there."""
    counted = all(sample.flops is not None for sample, _ in near)
    backward_s = sum(sample.backward_s * share for sample, share in near)
    weight_s = sum(sample.weight_gradient_s * share for sample, share in near)
    return replace(
        layer,
        forward=Timing(sum(sample.forward_s * share for sample, share in near)),
        backward=Timing(backward_s),
        weight_gradient_s=min(backward_s, weight_s),
        workspace_bytes=round(sum(sample.workspace_bytes * share for sample, share in near)),
        flops=round(sum((sample.flops or 0) * share for sample, share in near))
        if counted
        else None,
        work=(),
    )


def _resized_value(value: ValueProfile, sizes: Mapping[str, int]) -> ValueProfile:
    """Return a value with its bytes at given sizes."""
    shape = [int(evaluate(str(dim), sizes)) for dim in value.shape]
    return replace(value, nbytes=math.prod(shape) * DTYPE_BYTES[value.dtype])
