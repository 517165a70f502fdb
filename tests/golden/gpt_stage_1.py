"""Stage 1 of 2 of GPT.

Holds blocks.3..5, norm, head.
"""

import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """blocks.3..5.attention.

    Args:
        x: (batch, seq, 48)

    Returns:
        (batch, seq, 48)
    """

    def __init__(self):
        super().__init__()
        self.dropout = 0.1
        self.head_width = 12
        self.heads = 4
        self.qkv = nn.Linear(48, 144)
        self.out = nn.Linear(48, 48)

    def forward(self, x):
        batch, seq = x.shape[:2]
        query, key, value = self.qkv(x).split(48, dim=2)
        query = query.view(batch, seq, self.heads, self.head_width).transpose(1, 2)
        key = key.view(batch, seq, self.heads, self.head_width).transpose(1, 2)
        value = value.view(batch, seq, self.heads, self.head_width).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=True,
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, 48))


class FeedForward(nn.Module):
    """blocks.3..5.feed_forward.

    Args:
        x: (batch, seq, 48)

    Returns:
        (batch, seq, 48)
    """

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(48, 192)
        self.down = nn.Linear(192, 48)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """blocks.3..5.

    Args:
        x: (batch, seq, 48)

    Returns:
        (batch, seq, 48)
    """

    def __init__(self):
        super().__init__()
        self.norm_attention = nn.LayerNorm(48)
        self.attention = Attention()
        self.norm_feed_forward = nn.LayerNorm(48)
        self.feed_forward = FeedForward()

    def forward(self, x):
        x = x + self.attention(self.norm_attention(x))
        return x + self.feed_forward(self.norm_feed_forward(x))


class Stage1(nn.Module):
    """Stage 1 of 2.

    Args:
        x: (batch, seq, 48)

    Returns:
        (batch, seq, 96)
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(3, 6)})
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 96, bias=False)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x))
