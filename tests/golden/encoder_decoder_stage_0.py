"""Stage 0 of 3 of EncoderDecoder.

Holds positions, embed, encoder.0..1.
"""

import torch
from torch import nn


def heads(x):
    """Return (batch, 4, seq, 10)."""
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


class Attention(nn.Module):
    """encoder.0..1.attention.

    Args:
        x: (batch, seq, 40)

    Returns:
        (batch, seq, 40)
    """

    def __init__(self):
        super().__init__()
        self.scale = 10**-0.5
        self.query = nn.Linear(40, 40)
        self.key = nn.Linear(40, 40)
        self.value = nn.Linear(40, 40)
        self.out = nn.Linear(40, 40)

    def forward(self, x):
        query = heads(self.query(x)) * self.scale
        scores = query @ heads(self.key(x)).transpose(-2, -1)
        mixed = scores.softmax(-1) @ heads(self.value(x))
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """encoder.0..1.feed_forward.

    Args:
        x: (batch, seq, 40)

    Returns:
        (batch, seq, 40)
    """

    def __init__(self):
        super().__init__(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 40))


class EncoderBlock(nn.Module):
    """encoder.0..1.

    Args:
        x: (batch, seq, 40)

    Returns:
        (batch, seq, 40)
    """

    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.feed_forward = FeedForward()
        self.norm1 = nn.LayerNorm(40)
        self.norm2 = nn.LayerNorm(40)

    def forward(self, x):
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed_forward(x))


class Stage0(nn.Module):
    """Stage 0 of 3.

    Args:
        source: (batch, seq) int64

    Returns:
        (batch, seq, 40)
    """

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(32, 40))
        self.embed = nn.Embedding(24, 40)
        self.encoder = nn.ModuleList([EncoderBlock() for _ in range(2)])

    def forward(self, source):
        seq = source.shape[1]
        memory = self.embed(source) + self.positions[:seq]
        for block in self.encoder:
            memory = block(memory)
        return memory
