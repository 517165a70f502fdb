"""Stage 0 of 2 of GPT.

Holds tokens, positions, dropout, blocks.0..2.
"""

import torch
from torch import nn

from .original import original


class Stage0(nn.Module):
    """Stage 0 of 2.

    Args:
        ids: (batch, seq) int64

    Returns:
        (batch, seq, 48)
    """

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(96, 48)
        self.positions = nn.Embedding(32, 48)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList([original(f"blocks.{i}") for i in range(3)])

    def forward(self, ids):
        seq = ids.shape[1]
        positions = torch.arange(seq, device=ids.device)
        x = self.dropout(self.tokens(ids) + self.positions(positions))
        for block in self.blocks:
            x = block(x)
        return x
