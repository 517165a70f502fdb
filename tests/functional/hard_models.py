"""Small models, each with something that a pipeline easily gets wrong."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Boundaries(nn.Module):
    """Integers, booleans and values without gradient are made early and used late."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16)
        self.body = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.codes = nn.Embedding(16, 16)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        steps = torch.arange(x.shape[1], device=x.device)
        keep = steps[None, :] < lengths[:, None]
        h = torch.tanh(self.inner(x))
        code = h.argmax(-1)
        scale = h.detach().abs().mean()
        count = keep.sum()
        for layer in self.body:
            h = h + torch.relu(layer(h)).masked_fill(~keep.unsqueeze(-1), 0.0)
        h = h + self.codes(code) * scale
        logits = self.head(h) * keep.unsqueeze(-1)
        return logits, code.to(torch.int16), logits.sum() / count


class RootParameters(nn.Module):
    """Parameters of the root, in a list and in a dict; one is used three times."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(12))
        self.start = nn.Parameter(torch.randn(1, 1, 12))
        self.mixers = nn.ParameterList(torch.randn(12, 12) * 0.3 for _ in range(5))
        self.shifts = nn.ParameterDict({"a": torch.randn(12), "b": torch.randn(12)})
        self.register_buffer("offset", torch.linspace(0, 1, 12))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.cat([self.start.expand(x.shape[0], -1, -1), x], dim=1)
        for index, mixer in enumerate(self.mixers):
            h = h + torch.tanh(h @ mixer) * (self.scale if index % 2 else self.offset)
        return (h + self.shifts["a"]) * self.scale - self.shifts["b"]


class Precision(nn.Module):
    """Autocast and no_grad regions, dropout as module and as function."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.drop = nn.Dropout(0.2)
        self.out = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for layer in self.layers[:3]:
                x = x + self.drop(F.gelu(layer(x)))
            with torch.autocast("cpu", enabled=False):
                x = torch.layer_norm(x.float(), (16,))
        with torch.no_grad():
            weight = torch.sigmoid(self.layers[3](x)).mean(-1, keepdim=True)
        for layer in self.layers[3:]:
            x = x + F.dropout(torch.tanh(layer(x)), p=0.1, training=self.training) * weight
        return self.out(x)


class Answer(NamedTuple):
    """What ``Branches`` returns."""

    score: Tensor
    both: tuple[Tensor, Tensor]
    extra: dict[str, Tensor | None]


class Branches(nn.Module):
    """Two towers, the rows of one in dimension 1; a nested output with a value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.text = nn.GRU(6, 10)
        self.image = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.Flatten())
        self.to_image = nn.Linear(4 * 36, 10)
        self.joint = nn.Bilinear(10, 10, 8)
        self.gate = nn.Linear(10, 8)
        self.score = nn.Linear(8, 1)

    def forward(self, *, text: Tensor, picture: dict[str, Tensor | None]) -> Answer:
        states, _ = self.text(text)
        words = states[-1]
        seen = self.to_image(self.image(picture["pixels"]))
        joint = self.joint(words, seen) * torch.sigmoid(self.gate(seen - words))
        score = self.score(joint).squeeze(-1)
        return Answer(score, (joint, joint), {"states": states, "none": None})


class Counters(nn.Module):
    """Buffers that the forward updates, in-place operations on what was just handed over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(5))
        self.norm = nn.BatchNorm1d(10)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(10))
        self.register_buffer("table", torch.arange(10.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.shape[0]
        h = self.layers[0](x)
        with torch.no_grad():
            self.mean.mul_(0.9).add_(h.mean(0), alpha=0.1)
        skip = h
        for layer in self.layers[1:]:
            h = layer(h)
            h.add_(skip).mul_(0.7)
            h.relu_()
        h = self.norm(h) + self.table
        h[:, 0] = 1.0
        return h - self.mean


class Library(nn.Module):
    """Modules of torch with an inside of their own, and a region recomputed in backward."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.recurrent = nn.LSTM(12, 6, bidirectional=True, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12))
        self.heavy = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
        self.unused = nn.Linear(3, 3)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = self.encoder(x, src_key_padding_mask=mask)
        x = x + self.recurrent(x)[0]
        x = x + checkpoint(self.heavy, x, use_reentrant=False)
        spectrum = torch.fft.rfft(self.normed(x), dim=1)
        return torch.fft.irfft(spectrum * 0.5, n=x.shape[1], dim=1)


def boundaries() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Boundaries`` with rows of different length."""
    return Boundaries(), (torch.randn(4, 7, 8), torch.tensor([7, 3, 5, 1]))


def root_parameters() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``RootParameters``."""
    return RootParameters(), (torch.randn(4, 6, 12),)


def precision() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Precision``."""
    return Precision(), (torch.randn(4, 5, 16),)


def branches() -> tuple[nn.Module, tuple[()], dict[str, object]]:
    """Return ``Branches``, called by keywords, one of them nested."""
    picture = {"pixels": torch.randn(4, 1, 8, 8), "mask": None}
    return Branches(), (), {"picture": picture, "text": torch.randn(5, 4, 6)}


def counters() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Counters``."""
    return Counters(), (torch.randn(6, 10),)


def library() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return ``Library``."""
    return Library(), (torch.randn(4, 8, 12),)
