"""Modules whose parts differ by an argument or by a layer and may share a class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 8


class Mixer(nn.Module):
    """A layer whose last two arguments may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, memory: Tensor, bias: Tensor | None = None, gate: Tensor | None = None
    ) -> Tensor:
        scores = self.query(x) * self.value(memory)
        if bias is not None:
            scores = scores + bias
        if gate is not None:
            gate = gate.sigmoid()
            scores = scores * gate
        return scores.tanh() + memory


class Variants(nn.Module):
    """One layer called with and without optional arguments, and with one tensor in two roles."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mixer() for _ in range(7))
        self.bias = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d, e, f, g = self.layers
        x = a(x, x)
        y = b(x, torch.relu(x))
        x = c(x, y, self.bias)
        y = d(y, x, self.bias * 2)
        x = e(x, x, self.bias)
        x = f(x, y, self.bias, y)
        return g(x, y, None, x)


def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, p: float) -> Tensor:
    """Attend; what is kept and what is left out stand on both sides of the mask."""
    query, key, value = (
        each.unflatten(-1, (2, -1)).transpose(0, 1) for each in (query, key, value)
    )
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=p)
    return mixed.transpose(0, 1).flatten(1)


class Attention(nn.Module):
    """Attention over itself or over a memory, with a mask or without one."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        states = x if memory is None else memory
        key = self.key(states)
        return mix(self.query(x), key, states, mask, 0.5 if self.training else 0.0)


class Attends(nn.Module):
    """Attention with no argument, or with one of two: no call has both."""

    def __init__(self) -> None:
        super().__init__()
        self.itself = Attention()
        self.masked = Attention()
        self.over = Attention()
        self.again = Attention()
        self.mask = nn.Parameter(torch.rand(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        mask = self.mask.tanh()
        y = self.itself(x)
        y = self.masked(y, mask=mask)
        y = self.over(y, x)
        return y + self.again(y, mask=mask)


class Residual(nn.Module):
    """A layer beside a shortcut, whatever that is."""

    def __init__(self, width: int, shortcut: nn.Module) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, width)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.linear(x)) + self.shortcut(x)


class Pair(nn.Module):
    """Two blocks that differ in their shortcut, and a way back to the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = nn.Sequential(nn.Linear(WIDTH, width), nn.LayerNorm(width))
        self.blocks = nn.ModuleList([Residual(WIDTH, nn.Identity()), Residual(width, wide)])
        self.back = nn.Linear(width, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.back(x)


class Shortcuts(nn.Module):
    """Classes given layers by classes that are given their sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs = nn.ModuleList(Pair(width) for width in (4, 6, 6))
        self.last = Residual(WIDTH, nn.Linear(WIDTH, WIDTH, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        for pair in self.pairs:
            x = pair(x)
        return self.last(x)
