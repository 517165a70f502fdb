"""A Transformer encoder-decoder: two inputs, and a memory that every decoder block reads."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 24
SOURCE_LENGTH = 16
TARGET_LENGTH = 10
START = 0


class Attention(nn.Module):
    """Attention of one sequence over another, or over itself."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        query = self._heads(self.query(x)) * self.scale
        scores = query @ self._heads(self.key(memory)).transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        mixed = scores.softmax(-1) @ self._heads(self.value(memory))
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """Two linear layers with a ReLU between them."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.feed_forward(x))


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the memory, and feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.cross = Attention(width, heads)
        self.feed_forward = FeedForward(width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.norm3 = nn.LayerNorm(width)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x, x, mask))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.feed_forward(x))


class EncoderDecoder(nn.Module):
    """Predicts a target sequence from a source sequence and the target so far.

    Parameters
    ----------
    width, heads
        Size of the blocks.
    encoder_layers, decoder_layers
        Number of blocks.
    context
        Longest source or target.
    """

    def __init__(
        self,
        width: int = 40,
        heads: int = 4,
        encoder_layers: int = 3,
        decoder_layers: int = 4,
        context: int = 32,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.randn(context, width) * 0.1)
        self.encoder = nn.ModuleList(EncoderBlock(width, heads) for _ in range(encoder_layers))
        self.decoder = nn.ModuleList(DecoderBlock(width, heads) for _ in range(decoder_layers))
        self.head = nn.Linear(width, VOCABULARY)
        self.register_buffer("causal", torch.ones(context, context, dtype=torch.bool).tril())

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        memory = self.embed(source) + self.positions[: source.shape[1]]
        for block in self.encoder:
            memory = block(memory)
        x = self.embed(target) + self.positions[:length]
        for block in self.decoder:
            x = block(x, memory, self.causal[:length, :length])
        return self.head(x)


def build(**sizes: int) -> EncoderDecoder:
    """Return a small encoder-decoder; ``sizes`` are the parameters of ``EncoderDecoder``."""
    torch.manual_seed(0)
    return EncoderDecoder(**sizes)


def build_large() -> EncoderDecoder:
    """Return 4 encoder and 6 decoder blocks of width 256 (9.5 million parameters)."""
    return build(width=256, heads=8, encoder_layers=4, decoder_layers=6)


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return source and target ids, of different length."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, expected: Tensor) -> Tensor:
    """Return the mean cross-entropy of the expected tokens."""
    return F.cross_entropy(output.flatten(0, 1), expected.flatten())


def batches(
    batch_size: int, seed: int = 0
) -> Iterator[tuple[tuple[Tensor, Tensor], tuple[Tensor]]]:
    """Yield random sources; expected are their first tokens in reverse order."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        shape = (batch_size, SOURCE_LENGTH)
        source = torch.randint(1, VOCABULARY, shape, generator=generator)
        expected = source[:, :TARGET_LENGTH].flip(1)
        start = torch.full((batch_size, 1), START)
        yield (source, torch.cat([start, expected[:, :-1]], dim=1)), (expected,)
