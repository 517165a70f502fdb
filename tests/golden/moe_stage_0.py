"""Stage 0 of 2 of MixtureOfExperts.

Holds future, embed, blocks.0..3.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    """blocks.0..1.experts.

    Args:
        x: (batch, seq, 32)

    Returns:
        weights: (batch, seq, 4)
        answer: (batch, seq, 32)
    """

    def __init__(self):
        super().__init__()
        self.up = nn.Parameter(torch.empty(4, 32, 64))
        self.down = nn.Parameter(torch.empty(4, 64, 32))
        self.router = nn.Linear(32, 4, bias=False)
        self.exploration = nn.Linear(32, 4, bias=False)

    def forward(self, x):
        scores = self.router(x)
        weights = scores.softmax(-1)
        values, indices = weights.topk(2, dim=-1)
        gates = torch.zeros_like(weights).scatter(-1, indices, values)
        gates = gates / gates.sum(-1, keepdim=True)
        hidden = F.gelu(torch.einsum("btw,ewh->bteh", x, self.up))
        answers = torch.einsum("bteh,ehw->btew", hidden, self.down)
        return weights, (gates.unsqueeze(-1) * answers).sum(2)


class Block(nn.Module):
    """blocks.0..1.

    Args:
        x: (batch, seq, 32)
        mask: (seq, seq) bool

    Returns:
        weights: (batch, seq, 4)
        x: (batch, seq, 32)
    """

    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(32)
        self.norm2 = nn.LayerNorm(32)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.experts = Experts()

    def forward(self, x, mask):
        normed = self.norm1(x)
        mixed, _ = self.attention(
            normed, normed, normed, attn_mask=mask, need_weights=False
        )
        x = x + mixed
        weights, answer = self.experts(self.norm2(x))
        return weights, x + answer


class Stage0(nn.Module):
    """Stage 0 of 2.

    Args:
        ids: (batch, seq) int64

    Returns:
        weights: 2 x (batch, seq, 4)
        x: (batch, seq, 32)
    """

    def __init__(self):
        super().__init__()
        self.register_buffer(
            "future", torch.empty(16, 16, dtype=torch.bool), persistent=False
        )
        self.embed = nn.Embedding(48, 32)
        self.blocks = nn.ModuleList(
            [*(Block() for _ in range(2)), *(nn.Module() for _ in range(2))]
        )
        for block in self.blocks[2:]:
            block.experts = nn.Module()
            block.experts.exploration = nn.Linear(32, 4, bias=False)

    def forward(self, ids):
        seq = ids.shape[1]
        x = self.embed(ids)
        weights = []
        for block in self.blocks[:2]:
            weight, x = block(x, self.future[:seq, :seq])
            weights.append(weight)
        return *weights, x
