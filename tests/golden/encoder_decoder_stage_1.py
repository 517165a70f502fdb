"""Stage 1 of 3 of EncoderDecoder.

Holds positions, causal, embed, encoder.2, decoder.0..1.
"""

import torch
from torch import nn


def heads(x):
    """Return (batch, 4, *, 10)."""
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


class Attention(nn.Module):
    """encoder.2.attention, decoder.0.attention, decoder.0.cross,
    decoder.1.attention, decoder.1.cross.

    Args:
        x: (batch, *, 40)
        memory: (batch, *, 40)
        mask: (tgt, tgt) bool

    Returns:
        (batch, *, 40)
    """

    def __init__(self):
        super().__init__()
        self.scale = 10**-0.5
        self.query = nn.Linear(40, 40)
        self.key = nn.Linear(40, 40)
        self.value = nn.Linear(40, 40)
        self.out = nn.Linear(40, 40)

    def forward(self, x, memory, mask=None):
        query = heads(self.query(x)) * self.scale
        scores = query @ heads(self.key(memory)).transpose(-2, -1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        mixed = scores.softmax(-1) @ heads(self.value(memory))
        return self.out(mixed.transpose(1, 2).flatten(2))


class FeedForward(nn.Sequential):
    """encoder.2.feed_forward, decoder.0..1.feed_forward.

    Args:
        x: (batch, *, 40)

    Returns:
        (batch, *, 40)
    """

    def __init__(self):
        super().__init__(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 40))


class EncoderBlock(nn.Module):
    """encoder.2.

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
        x = self.norm1(x + self.attention(x, x))
        return self.norm2(x + self.feed_forward(x))


class DecoderBlock(nn.Module):
    """decoder.0..1.

    Args:
        x: (batch, tgt, 40)
        memory: (batch, seq, 40)
        mask: (tgt, tgt) bool

    Returns:
        (batch, tgt, 40)
    """

    def __init__(self):
        super().__init__()
        self.attention = Attention()
        self.cross = Attention()
        self.feed_forward = FeedForward()
        self.norm1 = nn.LayerNorm(40)
        self.norm2 = nn.LayerNorm(40)
        self.norm3 = nn.LayerNorm(40)

    def forward(self, x, memory, mask):
        x = self.norm1(x + self.attention(x, x, mask))
        x = self.norm2(x + self.cross(x, memory))
        return self.norm3(x + self.feed_forward(x))


class Stage1(nn.Module):
    """Stage 1 of 3.

    Args:
        target: (batch, tgt) int64
        memory: (batch, seq, 40)

    Returns:
        memory: (batch, seq, 40)
        x: (batch, tgt, 40)
    """

    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.empty(32, 40))
        self.register_buffer("causal", torch.empty(32, 32, dtype=torch.bool))
        self.embed = nn.Embedding(24, 40)
        self.encoder = nn.ModuleDict({"2": EncoderBlock()})
        self.decoder = nn.ModuleList([DecoderBlock() for _ in range(2)])

    def forward(self, target, memory):
        tgt = target.shape[1]
        memory = self.encoder["2"](memory)
        x = self.embed(target) + self.positions[:tgt]
        for block in self.decoder:
            x = block(x, memory, self.causal[:tgt, :tgt])
        return memory, x
