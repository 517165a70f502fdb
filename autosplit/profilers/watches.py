"""What is learnt in a pass: times, storages kept for backward, or memory that comes and goes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from autosplit.profilers.clocks import Clock
from autosplit.profilers.memory import MemoryMeter, storage_key
from autosplit.profilers.passes import Piece, Silence


class TimingWatch(Silence):
    """Times every layer, and beside each an empty one.

    An empty layer is one operation on one number: what it takes is the cost of entering a layer
    where it stands, with the caches as the layer before has left them.
    """

    def __init__(self, clock: Clock, layers: int, device: torch.device) -> None:
        self._clock = clock
        self._layers = layers
        self._forward: list[Any] = [None] * layers
        self._backward: list[Any] = [None] * layers
        self._empty: list[tuple[Any, Any]] = []
        self._begin: Any = None
        self._leaf = torch.zeros(1, device=device, requires_grad=True)
        self._gradient = torch.ones(1, device=device)

    def reset(self) -> None:
        """Forget the pass before."""
        self._backward = [None] * self._layers
        self._empty.clear()

    def forward_begins(self, index: int) -> None:
        """Set a mark."""
        self._begin = self._clock.mark()

    def forward_ends(self, index: int, taken: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Set a mark."""
        self._forward[index] = (self._begin, self._clock.mark())

    def backward_begins(self, index: int) -> None:
        """Set a mark."""
        self._begin = self._clock.mark()

    def backward_ends(self, index: int) -> None:
        """Set a mark, then time an empty layer in the same place."""
        self._backward[index] = (self._begin, self._clock.mark())
        begin = self._clock.mark()
        with torch.enable_grad():
            result = self._leaf.neg()
        torch.autograd.grad(result, self._leaf, self._gradient)
        self._empty.append((begin, self._clock.mark()))

    def seconds(self) -> tuple[list[float], list[float], list[float]]:
        """Return forward and backward of each layer, and all empty layers of the last pass."""

        def each(pairs: Iterable[Any]) -> list[float]:
            return [self._clock.seconds(*pair) if pair else 0.0 for pair in pairs]

        return each(self._forward), each(self._backward), each(self._empty)


class SavedWatch(Silence):
    """Learns which storages backward keeps for each layer, and in which values live.

    Storages are known by their identity, so that views count once. They are kept alive for the
    length of the pass, since the memory of one that is gone may be given to another.

    Parameters
    ----------
    pieces
        The layers.
    state
        Parameters, buffers and constants: they are there anyway and do not count.
    """

    def __init__(self, pieces: Sequence[Piece], state: Iterable[Tensor]) -> None:
        self._pieces = pieces
        self._state = {storage_key(tensor) for tensor in state}
        self._alive: dict[int, torch.UntypedStorage] = {}
        self._current: int | None = None
        self.saved: list[dict[int, None]] = [{} for _ in pieces]
        self.value_storage: dict[str, int] = {}
        self.values: dict[str, Tensor] = {}

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """Return the context in which the pass must run."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def forward_begins(self, index: int) -> None:
        """Charge what is saved from now on to this layer."""
        self._current = index

    def forward_ends(self, index: int, taken: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Note the storages of what the layer took and gave."""
        self._current = None
        compute = self._pieces[index].compute
        for name, value in zip((*compute.inputs, *compute.outputs), (*taken, *given), strict=True):
            self.value_storage.setdefault(name, self._keep(value))

    def storage_bytes(self, key: int) -> int:
        """Return the bytes of a storage."""
        return self._alive[key].nbytes()

    def _pack(self, tensor: Tensor) -> Tensor:
        key = storage_key(tensor)
        if self._current is not None and key not in self._state:
            self._keep(tensor)
            self.saved[self._current][key] = None
        return tensor

    def _keep(self, tensor: Tensor) -> int:
        key = storage_key(tensor)
        self._alive.setdefault(key, tensor.untyped_storage())
        return key


class MemoryWatch(Silence):
    """Measures the memory that a layer needs for a moment.

    In the forward that is the peak beyond what is alive when the layer ends; in the backward
    the peak beyond what is alive when it begins, gradients that it makes included.
    """

    def __init__(self, meter: MemoryMeter, layers: int) -> None:
        self._meter = meter
        self._before = 0
        self.workspace_bytes = [0] * layers

    def forward_begins(self, index: int) -> None:
        """Let the peak start again."""
        self._meter.reset_peak()

    def forward_ends(self, index: int, taken: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Read the peak."""
        self._raise(index, self._meter.peak_bytes - self._meter.current_bytes)

    def backward_begins(self, index: int) -> None:
        """Let the peak start again."""
        self._meter.reset_peak()
        self._before = self._meter.current_bytes

    def backward_ends(self, index: int) -> None:
        """Read the peak."""
        self._raise(index, self._meter.peak_bytes - self._before)

    def _raise(self, index: int, nbytes: int) -> None:
        self.workspace_bytes[index] = max(self.workspace_bytes[index], nbytes)
