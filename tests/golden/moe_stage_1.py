"""Stage 1 of 2 of MixtureOfExperts.

Holds future, blocks.2..3, norm, head.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Experts(nn.Module):
    """blocks.2..3.experts.

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
    """blocks.2..3.

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


class Stage1(nn.Module):
    """Stage 1 of 2.

    Args:
        weight: (batch, seq, 4)
        weight_2: (batch, seq, 4)
        x: (batch, seq, 32)

    Returns:
        balance: ()
        head: (batch, seq, 48)
        detach: (4, 4)
    """

    def __init__(self):
        super().__init__()
        self.register_buffer(
            "future", torch.empty(16, 16, dtype=torch.bool), persistent=False
        )
        self.blocks = nn.ModuleDict({str(i): Block() for i in range(2, 4)})
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 48)

    def forward(self, weight, weight_2, x):
        seq = weight.shape[1]
        weights = [weight, weight_2]
        for block in self.blocks.values():
            weight, x = block(x, self.future[:seq, :seq])
            weights.append(weight)
        share = torch.stack(weights).mean((1, 2))
        balance = share.square().sum(-1).mean() * 4
        return balance, self.head(self.norm(x)), share.detach()
