"""A model measured layer by layer, and where the numbers come from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autosplit.checks import require, require_finite, require_known, require_unique
from autosplit.program import Dim


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
    inference
        Whether the model is put into evaluation mode; else it stays as built.
    """

    spec: str
    batch_size: int | None = None
    inputs: tuple[str, ...] = ()
    task: str | None = None
    dtype: str | None = None
    inference: bool = False

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
        What was read: "thread" (CPU time of one thread), "wall", "event" (CUDA events) or
        "file" (times came from a file of another tool).
    """

    kind: str
    name: str
    threads: int
    torch_version: str
    clock: Literal["thread", "wall", "event", "file", "model"]


# ---------------------------------------------------------------- profile


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

    def __post_init__(self) -> None:
        require_finite(self, "nbytes")


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

    def __post_init__(self) -> None:
        require_finite(self, "workspace_bytes", "flops")


@dataclass(frozen=True, slots=True)
class WholeModel:
    """The whole step, timed in the same repetitions as the layers.

    ``ratio`` is the plain sum over layers divided by the whole; ``offset_s`` is the cost of
    entering one layer alone, by which sums over consecutive layers are corrected.
    """

    forward_s: float
    backward_s: float
    ratio: float
    offset_s: float

    def __post_init__(self) -> None:
        require_finite(self, "forward_s", "backward_s", "ratio", "offset_s")


@dataclass(frozen=True)
class Profile:
    """A model measured layer by layer.

    ``layers`` stand in a topological order of the program. ``fingerprint`` identifies the
    traced program; ``order_edges`` are ``(before, after)`` pairs of layers that no value
    connects but whose order matters (in-place writes).
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

    @cached_property
    def layer(self) -> dict[str, LayerProfile]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}
