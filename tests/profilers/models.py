"""Layers written by hand, for passes over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from autosplit.layers import Layer
from autosplit.profilers.passes import Piece, Step


@dataclass
class Function:
    """A Python function as a compiled set of operations."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: Callable[..., tuple[Any, ...]]
    writes: tuple[str, ...] = ()

    @property
    def clone(self) -> tuple[bool, ...]:
        return tuple(name in self.writes for name in self.inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Any, ...]:
        return self.function(*tensors)


def piece(
    name: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    function: Callable[..., tuple[Any, ...]],
    *modules: nn.Module,
    writes: tuple[str, ...] = (),
) -> Piece:
    parameters = tuple(
        parameter
        for module in modules
        for parameter in module.parameters()
        if parameter.requires_grad
    )
    layer = Layer(name, "", None, name, (name,))
    return Piece(layer, Function(inputs, outputs, function, writes), parameters)


@dataclass
class Residual:
    """``x -> first -> (+ tanh, skip) -> second`` with an integer side input."""

    first: nn.Linear
    second: nn.Linear
    step: Step

    def whole(self, x: Tensor, index: Tensor) -> Tensor:
        h = self.first(x)
        h = h + torch.tanh(h) + h[index]
        output: Tensor = self.second(h)
        return output


def residual(training: bool = True) -> tuple[Residual, dict[str, Tensor]]:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 6), nn.Linear(6, 3)
    inputs = {"x": torch.randn(4, 6), "index": torch.tensor([3, 2, 1, 0])}
    pieces = [
        piece("first", ("x",), ("h",), lambda x: (first(x),), first),
        piece("tanh", ("h",), ("t",), lambda h: (torch.tanh(h),)),
        piece("sum", ("h", "t", "index"), ("s",), lambda h, t, i: (h + t + h[i],)),
        piece("second", ("s",), ("y",), lambda s: (second(s),), second),
    ]
    step = Step(pieces, inputs, frozenset({"y"}), training)
    return Residual(first, second, step), inputs
