"""A GPT: decoder-only Transformer whose output layer shares the weight of the embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 96
LENGTH = 32


class Attention(nn.Module):
    """Causal self-attention over several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.head_width = width // heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, self.head_width)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, 2)
        )
        rate = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """Two linear layers with a GELU between them."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_feed_forward = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed_forward(self.norm_feed_forward(x))


class GPT(nn.Module):
    """Predicts the next token at every position.

    Parameters
    ----------
    vocabulary, context
        Number of tokens, and the longest sequence.
    width, heads, layers
        Size of the model.
    dropout
        Rate of dropout in training.
    """

    def __init__(
        self,
        vocabulary: int = VOCABULARY,
        context: int = LENGTH,
        width: int = 48,
        heads: int = 4,
        layers: int = 6,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(**sizes: float) -> GPT:
    """Return a small GPT; ``sizes`` are the parameters of ``GPT``."""
    torch.manual_seed(0)
    return GPT(**sizes)


def build_large() -> GPT:
    """Return a GPT with 8 blocks of width 256 (6.4 million parameters).

    It drops nothing, so that runs of it can be compared step by step.
    """
    return build(width=256, heads=8, layers=8, dropout=0.0)


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return token ids of shape ``(batch_size, LENGTH)``."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next tokens."""
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], tuple[Tensor]]]:
    """Yield sequences that count up in steps of 1 to 4, and the same one token later."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(VOCABULARY, (batch_size, 1), generator=generator)
        step = torch.randint(1, 5, (batch_size, 1), generator=generator)
        row = (start + step * torch.arange(LENGTH + 1)) % VOCABULARY
        yield (row[:, :-1].contiguous(),), (row[:, 1:].contiguous(),)
