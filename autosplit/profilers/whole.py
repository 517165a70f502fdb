"""The whole step in one piece: what the sum over layers is compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from autosplit.profilers.clocks import Clock
from autosplit.profilers.passes import Compute


class WholeStep:
    """Forward and backward of all operations of a model at once.

    Parameters
    ----------
    compute
        All live operations.
    inputs
        Model inputs by name.
    training
        Whether there is a backward.
    """

    def __init__(self, compute: Compute, inputs: dict[str, Tensor], training: bool) -> None:
        self._compute = compute
        self._inputs = [inputs[name] for name in compute.inputs]
        self._training = training
        self._seeds: list[Tensor] = []

    def run(self, clock: Clock) -> tuple[float, float]:
        """Run one step and return the seconds of its forward and backward."""
        own = [
            value.clone() if writes else value
            for value, writes in zip(self._inputs, self._compute.clone, strict=True)
        ]
        clock.start()
        with torch.set_grad_enabled(self._training):
            begin = clock.mark()
            given = self._compute(*own)
            forward_end = clock.mark()
        backward_begin, backward_end = self._backward(given, clock)
        clock.stop()
        forward_s = clock.seconds(begin, forward_end)
        return forward_s, clock.seconds(backward_begin, backward_end)

    def _backward(self, given: tuple[Tensor, ...], clock: Clock) -> tuple[object, object]:
        roots = [value for value in given if value.requires_grad] if self._training else []
        if not self._seeds:
            self._seeds = [torch.ones_like(value) for value in roots]
        begin = clock.mark()
        if roots:
            torch.autograd.backward(roots, self._seeds)
        return begin, clock.mark()
