"""Models on which splitting a backward by cutting the autograd graph goes wrong."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 12


class FrozenStart(nn.Module):
    """No input of the first trained stage needs a gradient: its weights are forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.frozen.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 3, bias=False)
        self.up = nn.Linear(3, WIDTH, bias=False)
        self.trained = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.frozen:
            x = torch.relu(layer(x))
        x = x + self.up(self.down(x))
        for layer in self.trained:
            x = torch.tanh(layer(x))
        return x


class UsedTwice(nn.Module):
    """Layers called several times, near to each other and far apart."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.far = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.near:
            x = x + layer(torch.relu(layer(x)))
            x = x + self.far(x)
        return x


class Merged(nn.Module):
    """Parameters that meet before they meet an input, and one that meets two others."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.3 for _ in range(4))
        self.second = nn.ParameterList(torch.randn(WIDTH, WIDTH) * 0.3 for _ in range(4))
        self.shift = nn.ParameterList(torch.randn(1, WIDTH) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.alone = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for first, second, shift in zip(self.first, self.second, self.shift, strict=True):
            x = torch.tanh(x @ (first + second) + shift)
            x = (x @ second) * self.scale + shift * self.scale
        return x, self.alone * self.scale


class Transposed(nn.Module):
    """Views cross the cuts, and gradients come back that are not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.columns = nn.ModuleList(nn.Conv1d(WIDTH, WIDTH, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for row, column in zip(self.rows, self.columns, strict=True):
            y = row(x).transpose(1, 2)
            x = (column(y) + y[:, :1].expand_as(y)).transpose(1, 2)
        return x


class SavedOutput(nn.Module):
    """Operations that keep their own output end each piece."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        ends = (torch.tanh, torch.sigmoid, torch.exp, lambda h: F.softmax(h, -1))
        for index, layer in enumerate(self.layers):
            x = ends[index % 4](layer(x))
        return x


def _vectors(model: type[nn.Module]) -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return model(), (torch.randn(3, 5, WIDTH),)


def frozen_start() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``FrozenStart``."""
    return _vectors(FrozenStart)


def used_twice() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``UsedTwice``."""
    return _vectors(UsedTwice)


def merged() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Merged``."""
    return _vectors(Merged)


def transposed() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Transposed``."""
    return _vectors(Transposed)


def saved_output() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``SavedOutput``."""
    return _vectors(SavedOutput)
