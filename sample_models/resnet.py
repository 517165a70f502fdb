"""A residual network for images, with BatchNorm and in-place ReLU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZE = 24
CLASSES = 6


class Residual(nn.Module):
    """Two convolutions with BatchNorm, added to a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class ResNet(nn.Module):
    """Classifies images of three channels.

    Parameters
    ----------
    widths
        Channels of each stage; every stage but the first halves the image.
    depth
        Residual blocks in each stage.
    """

    def __init__(self, widths: Sequence[int] = (12, 16, 24), depth: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU(inplace=True)
        blocks = []
        inputs = widths[0]
        for stage, width in enumerate(widths):
            for index in range(depth):
                blocks.append(Residual(inputs, width, 2 if stage and not index else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(widths[-1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(images)))
        x = self.pool(self.blocks(x)).flatten(1)
        return self.classify(x)


def build(widths: Sequence[int] = (12, 16, 24), depth: int = 2) -> ResNet:
    """Return a small ResNet; the arguments are those of ``ResNet``."""
    torch.manual_seed(0)
    return ResNet(widths, depth)


def build_large() -> ResNet:
    """Return a ResNet with 9 blocks of 48 to 192 channels (2.4 million parameters)."""
    return build((48, 96, 192), depth=3)


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return images of shape ``(batch_size, 3, SIZE, SIZE)``."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross-entropy of the classes."""
    return F.cross_entropy(output, labels)


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], tuple[Tensor]]]:
    """Yield noisy stripes and the class that sets their direction."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    angles = torch.arange(CLASSES) * (torch.pi / CLASSES)
    waves = rows * angles.cos()[:, None, None] + columns * angles.sin()[:, None, None]
    while True:
        labels = torch.randint(CLASSES, (batch_size,), generator=generator)
        noise = torch.randn(batch_size, 3, SIZE, SIZE, generator=generator)
        yield (waves.sin()[labels][:, None] + 0.5 * noise,), (labels,)
