"""A mixture of experts: every token is routed to its best experts, in one batched product."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 48
LENGTH = 16


class Experts(nn.Module):
    """Feed-forward networks of equal shape, of which each token uses the ``chosen`` best.

    All experts see all tokens and the rest are weighted by zero: no shape depends on the data.
    """

    def __init__(self, width: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(width, experts, bias=False)
        self.exploration = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * (2 * width) ** -0.5)

    def forward(self, x: Tensor, explore: bool = False) -> tuple[Tensor, Tensor]:
        """Return the experts' answer, and the weight of each expert for each token."""
        scores = self.router(x)
        if explore:
            scores = scores + torch.randn_like(scores) * F.softplus(self.exploration(x))
        weights = scores.softmax(-1)
        best = weights.topk(self.chosen, dim=-1)
        gates = torch.zeros_like(weights).scatter(-1, best.indices, best.values)
        gates = gates / gates.sum(-1, keepdim=True)
        hidden = F.gelu(torch.einsum("btw,ewh->bteh", x, self.up))
        answers = torch.einsum("bteh,ehw->btew", hidden, self.down)
        return (gates.unsqueeze(-1) * answers).sum(2), weights


class Block(nn.Module):
    """Attention and experts, each behind a norm and added to what came in."""

    def __init__(self, width: int, heads: int, experts: int, chosen: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.experts = Experts(width, experts, chosen)

    def forward(self, x: Tensor, mask: Tensor, explore: bool) -> tuple[Tensor, Tensor]:
        normed = self.norm1(x)
        mixed, _ = self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)
        x = x + mixed
        answer, weights = self.experts(self.norm2(x), explore)
        return x + answer, weights


class MixtureOfExperts(nn.Module):
    """Predicts the next token; returns a dict with logits, balance and share of each expert.

    ``balance`` is an auxiliary loss that keeps the experts equally busy. ``exploration`` layers
    are used with ``explore=True`` alone: otherwise they are parameters without a gradient.

    Parameters
    ----------
    width, heads, layers
        Size of the model.
    experts, chosen
        Experts in each block, and how many a token uses.
    """

    def __init__(
        self, width: int = 32, heads: int = 4, layers: int = 4, experts: int = 4, chosen: int = 2
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads, experts, chosen) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY)
        future = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        self.register_buffer("future", future, persistent=False)

    def forward(self, ids: Tensor, explore: bool = False) -> dict[str, Tensor]:
        length = ids.shape[1]
        x = self.embed(ids)
        weights = []
        for block in self.blocks:
            x, weight = block(x, self.future[:length, :length], explore)
            weights.append(weight)
        share = torch.stack(weights).mean((1, 2))
        balance = share.square().sum(-1).mean() * share.shape[-1]
        return {"logits": self.head(self.norm(x)), "balance": balance, "share": share.detach()}


def build(**sizes: int) -> MixtureOfExperts:
    """Return a small model; ``sizes`` are the parameters of ``MixtureOfExperts``."""
    torch.manual_seed(0)
    return MixtureOfExperts(**sizes)


def build_large() -> MixtureOfExperts:
    """Return 6 blocks of width 192 with 8 experts each (8 million parameters)."""
    return build(width=192, heads=8, layers=6, experts=8)


def example_inputs(batch_size: int) -> dict[str, Tensor]:
    """Return the keyword ``ids``, of shape ``(batch_size, LENGTH)``."""
    return next(batches(batch_size))[0]


def loss(output: dict[str, Tensor], targets: Tensor) -> Tensor:
    """Return the mean cross-entropy plus a hundredth of the balance."""
    entropy = F.cross_entropy(output["logits"].flatten(0, 1), targets.flatten())
    return entropy + 0.01 * output["balance"]


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[dict[str, Tensor], tuple[Tensor]]]:
    """Yield walks along one of two fixed cycles; the parity of the first token picks which."""
    orders = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(7))
    following = torch.stack([orders, orders.argsort()])
    generator = torch.Generator().manual_seed(seed)
    while True:
        row = [torch.randint(VOCABULARY, (batch_size,), generator=generator)]
        cycle = row[0] % 2
        for _ in range(LENGTH):
            row.append(following[cycle, row[-1]])
        walk = torch.stack(row, dim=1)
        yield {"ids": walk[:, :-1].contiguous()}, (walk[:, 1:].contiguous(),)
