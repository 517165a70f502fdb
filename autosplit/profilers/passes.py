"""One training step of a model, layer by layer: forward in order, backward in reverse.

Each layer computes on detached tensors, which all its fellow readers share, so that its backward
can be run alone; what it costs is then its own. Gradients of parameters add up from pass to pass
and are never zeroed, as in a step over many micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from autosplit.layers import Layer
from autosplit.profilers.memory import storage_key


class Compute(Protocol):
    """A runnable set of operations, as ``tracers.replay`` compiles it."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the values it takes."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values it returns."""
        ...

    @property
    def clone(self) -> tuple[bool, ...]:
        """Whether it writes to each value it takes, and must be given a copy."""
        ...

    @property
    def function(self) -> Callable[..., tuple[Any, ...]]:
        """The plain Python function that runs."""
        ...

    def __call__(self, *tensors: Tensor) -> tuple[Any, ...]:
        """Return the outputs for the inputs."""
        ...


@dataclass(frozen=True)
class Piece:
    """A layer that can be run.

    Parameters
    ----------
    layer
        The layer.
    compute
        Its operations.
    parameters
        Parameters it uses that are trained.
    """

    layer: Layer
    compute: Compute
    parameters: tuple[Tensor, ...]


def accumulate(parameter: Tensor, gradient: Tensor) -> None:
    """Add a gradient to a parameter's own, made like the parameter at first."""
    if parameter.grad is None:
        parameter.grad = torch.empty_like(parameter).copy_(gradient)
    else:
        parameter.grad.add_(gradient)


class Watch(Protocol):
    """Is told when the parts of a pass begin and end."""

    def forward_begins(self, index: int) -> None:
        """Learn that the forward of a layer begins now."""
        ...

    def forward_ends(self, index: int, taken: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """Learn that the forward of a layer has ended."""
        ...

    def backward_begins(self, index: int) -> None:
        """Learn that the backward of a layer begins now."""
        ...

    def backward_ends(self, index: int) -> None:
        """Learn that the backward of a layer has ended."""
        ...


@dataclass
class Step:
    """A step of a model over its layers, to be run again and again.

    Parameters
    ----------
    pieces
        All layers, in a topological order.
    inputs
        Model inputs by name.
    outputs
        Names of the values the model returns.
    training
        Whether there is a backward.
    accumulate
        Adds a gradient to that of its parameter.
    region
        What the forward runs in, as ``autocast_region`` gives it.
    """

    pieces: Sequence[Piece]
    inputs: dict[str, Tensor]
    outputs: frozenset[str]
    training: bool
    accumulate: Callable[[Tensor, Tensor], None] = accumulate
    region: Callable[[], AbstractContextManager[Any]] = nullcontext

    def __post_init__(self) -> None:
        self.returned: set[str] = set()
        """Values to which a gradient has come back."""
        self.seeds: dict[str, Tensor] = {}
        """Gradients that a loss would send, made in the first pass."""
        self.running = ""
        """Name of the layer that runs."""
        self._last_reader = {
            name: index for index, piece in enumerate(self.pieces) for name in piece.compute.inputs
        }

    def run(self, watch: Watch, *, weights: bool = True) -> None:
        """Run one pass; without ``weights`` its backward leaves out gradients of parameters."""
        with torch.set_grad_enabled(self.training), self.region():
            tape = self._forward(watch)
        if self.training:
            self._backward(tape, watch, weights)

    def _forward(self, watch: Watch) -> list[tuple[list[Tensor], tuple[Tensor, ...]]]:
        values = dict(self.inputs)
        tape: list[tuple[list[Tensor], tuple[Tensor, ...]]] = []
        for index, piece in enumerate(self.pieces):
            compute = piece.compute
            taken = [values[name] for name in compute.inputs]
            own = [
                value.clone() if writes else value
                for value, writes in zip(taken, compute.clone, strict=True)
            ]
            self.running = piece.layer.name
            watch.forward_begins(index)
            given = compute(*own)
            watch.forward_ends(index, taken, given)
            del own
            for name, value in zip(compute.outputs, given, strict=True):
                values[name] = value.detach().requires_grad_(value.requires_grad)
            for name in compute.inputs:
                if self._last_reader[name] == index and name not in self.inputs:
                    del values[name]
            if self.training:
                tape.append((taken, given))
            del taken, given
        return tape

    def _backward(
        self, tape: list[tuple[list[Tensor], tuple[Tensor, ...]]], watch: Watch, weights: bool
    ) -> None:
        gradients = _Gradients(self._seed(tape))
        for index in reversed(range(len(self.pieces))):
            taken, given = tape.pop()
            self._backward_of(index, taken, given, gradients, watch, weights)

    def _backward_of(
        self,
        index: int,
        taken: list[Tensor],
        given: tuple[Tensor, ...],
        gradients: _Gradients,
        watch: Watch,
        weights: bool,
    ) -> None:
        piece = self.pieces[index]
        parameters = piece.parameters if weights else ()
        roots: list[Tensor] = []
        arrived: list[Tensor] = []
        for name, value in zip(piece.compute.outputs, given, strict=True):
            gradient = gradients.pop(name) if value.requires_grad else None
            if gradient is not None:
                self.returned.add(name)
                roots.append(value)
                arrived.append(gradient)
        leaves = [
            (name, value)
            for name, value in zip(piece.compute.inputs, taken, strict=True)
            if value.requires_grad
        ]
        wanted = [*(value for _, value in leaves), *parameters]
        if not roots or not wanted:
            return
        self.running = piece.layer.name
        watch.backward_begins(index)
        found = torch.autograd.grad(roots, wanted, arrived, allow_unused=True)
        for (name, _), gradient in zip(leaves, found, strict=False):
            if gradient is not None:
                gradients.add(name, gradient)
        for parameter, gradient in zip(parameters, found[len(leaves) :], strict=True):
            if gradient is not None:
                self.accumulate(parameter, gradient)
        watch.backward_ends(index)
        gradients.settle([name for name, _ in leaves], found, arrived)

    def _seed(self, tape: list[tuple[list[Tensor], tuple[Tensor, ...]]]) -> dict[str, Tensor]:
        """Return the gradients that a loss would send: ones, made once."""
        if not self.seeds:
            for piece, (_, given) in zip(self.pieces, tape, strict=True):
                for name, value in zip(piece.compute.outputs, given, strict=True):
                    if name in self.outputs and value.requires_grad:
                        self.seeds[name] = torch.ones_like(value)
        return dict(self.seeds)


class _Gradients:
    """Gradients on their way back to the layers that made the values.

    Like autograd, they are added in place only where nobody else holds the memory.
    """

    def __init__(self, seeds: dict[str, Tensor]) -> None:
        self._sums = dict(seeds)
        self._seeded = set(seeds)
        self._owned: set[str] = set()

    def pop(self, name: str) -> Tensor | None:
        return self._sums.pop(name, None)

    def add(self, name: str, gradient: Tensor) -> None:
        if name not in self._sums:
            self._sums[name] = gradient
        elif name in self._owned:
            self._sums[name].add_(gradient)
        else:
            self._sums[name] = self._sums[name] + gradient
            self._owned.add(name)

    def settle(
        self, names: Sequence[str], found: Sequence[Tensor | None], arrived: Sequence[Tensor]
    ) -> None:
        """Note which of the gradients just found are in memory of their own."""
        keys = [storage_key(gradient) for gradient in (*found, *arrived) if gradient is not None]
        for name, gradient in zip(names, found, strict=False):
            if (
                gradient is not None
                and self._sums.get(name) is gradient
                and name not in self._seeded
                and gradient.is_contiguous()
                and keys.count(storage_key(gradient)) == 1
            ):
                self._owned.add(name)


class Silence:
    """A watch that does nothing."""

    def forward_begins(self, index: int) -> None:
        """Do nothing."""

    def forward_ends(self, index: int, taken: Sequence[Any], given: Sequence[Any]) -> None:
        """Do nothing."""

    def backward_begins(self, index: int) -> None:
        """Do nothing."""

    def backward_ends(self, index: int) -> None:
        """Do nothing."""
