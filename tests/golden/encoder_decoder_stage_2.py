"""Stage 2 of 3 of EncoderDecoder.

Holds causal, decoder.2..3, head.
"""

import torch
from torch import nn


def heads(x):
    """Return (batch, 4, *, 10)."""
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


class Attention(nn.Module):
    """decoder.2.attention, decoder.2.cross, decoder.3.attention, decoder.3.cross.

    Args:
        x: (batch, tgt, 40)
        memory: (batch, *, 40)
        mask: (tgt, tgt) bool

    Returns:
        (batch, tgt, 40)
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
    """decoder.2..3.feed_forward.

    Args:
        x: (batch, tgt, 40)

    Returns:
        (batch, tgt, 40)
    """

    def __init__(self):
        super().__init__(nn.Linear(40, 160), nn.ReLU(), nn.Linear(160, 40))


class DecoderBlock(nn.Module):
    """decoder.2..3.

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


class Stage2(nn.Module):
    """Stage 2 of 3.

    Args:
        memory: (batch, seq, 40)
        x: (batch, tgt, 40)

    Returns:
        (batch, tgt, 24)
    """

    def __init__(self):
        super().__init__()
        self.register_buffer("causal", torch.empty(32, 32, dtype=torch.bool))
        self.decoder = nn.ModuleDict({str(i): DecoderBlock() for i in range(2, 4)})
        self.head = nn.Linear(40, 24)

    def forward(self, memory, x):
        tgt = x.shape[1]
        for block in self.decoder.values():
            x = block(x, memory, self.causal[:tgt, :tgt])
        return self.head(x)
