"""A small language model of equal blocks, deep enough for eight stages, with data and loss."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 12


class Deep(nn.Module):
    """Blocks between an embedding and a head that are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(16))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = x + F.gelu(block(x))
        logits: Tensor = self.head(self.norm(x))
        return logits


def build() -> nn.Module:
    """Return the model."""
    torch.manual_seed(0)
    return Deep()


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return token ids."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of the next token."""
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def batches(batch_size: int) -> Iterator[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]:
    """Yield token ids and their successors."""
    generator = torch.Generator().manual_seed(1)
    while True:
        ids = torch.randint(0, 11, (batch_size, 6), generator=generator)
        yield (ids[:, :-1],), (ids[:, 1:].contiguous(),)
