"""A multi-layer perceptron whose layers differ widely in cost: no even split is a good one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES = 32
CLASSES = 8


class Layer(nn.Module):
    """Linear layer, norm, ReLU and dropout."""

    def __init__(self, inputs: int, outputs: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.norm = nn.LayerNorm(outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.relu(self.norm(self.linear(x))))


class MLP(nn.Module):
    """Classifies feature vectors.

    Parameters
    ----------
    widths
        Width of each hidden layer.
    dropout
        Rate of dropout in training.
    """

    def __init__(
        self, widths: Sequence[int] = (64, 256, 32, 32, 384, 16), dropout: float = 0.05
    ) -> None:
        super().__init__()
        sizes = (FEATURES, *widths)
        self.layers = nn.Sequential(*(Layer(a, b, dropout) for a, b in pairwise(sizes)))
        self.classify = nn.Linear(sizes[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.layers(x))


def build(widths: Sequence[int] = (64, 256, 32, 32, 384, 16), dropout: float = 0.05) -> MLP:
    """Return a small MLP; the arguments are those of ``MLP``."""
    torch.manual_seed(0)
    return MLP(widths, dropout)


def build_large() -> MLP:
    """Return an MLP with hidden layers of 512 to 4,096 units (20 million parameters)."""
    return build((1024, 4096, 512, 512, 2048, 4096, 1024))


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return features of shape ``(batch_size, FEATURES)``."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the classes."""
    return F.cross_entropy(output, labels)


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], tuple[Tensor]]]:
    """Yield vectors scattered around one fixed centre per class, and the class."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    while True:
        labels = torch.randint(CLASSES, (batch_size,), generator=generator)
        noise = torch.randn(batch_size, FEATURES, generator=generator)
        yield (centres[labels] + 1.5 * noise,), (labels,)
