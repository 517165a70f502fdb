"""A U-Net: features of the way down are used again on the way up, across the whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SIZE = 32


class Convolution(nn.Module):
    """Convolution, GroupNorm and SiLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.GroupNorm(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.norm(self.conv(x)))


class Down(nn.Module):
    """Halves the image, then two convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = Convolution(inputs, outputs)
        self.second = Convolution(outputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(F.max_pool2d(x, 2)))


class Up(nn.Module):
    """Doubles the image, joins the features of the way down, then two convolutions."""

    def __init__(self, inputs: int, skipped: int, outputs: int) -> None:
        super().__init__()
        self.first = Convolution(inputs + skipped, outputs)
        self.second = Convolution(outputs, outputs)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return self.second(self.first(torch.cat([x, skip], dim=1)))


class UNet(nn.Module):
    """Marks the pixels of an image that belong to an object.

    Parameters
    ----------
    widths
        Channels at each scale, finest first.
    """

    def __init__(self, widths: Sequence[int] = (8, 12, 16, 24)) -> None:
        super().__init__()
        self.stem = Convolution(3, widths[0])
        pairs = list(pairwise(widths))
        self.down = nn.ModuleList(Down(fine, coarse) for fine, coarse in pairs)
        self.middle = Convolution(widths[-1], widths[-1])
        self.up = nn.ModuleList(Up(coarse, fine, fine) for fine, coarse in reversed(pairs))
        self.out = nn.Conv2d(widths[0], 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        x = self.middle(x)
        for up in self.up:
            x = up(x, skips.pop())
        return self.out(x).squeeze(1)


def build(widths: Sequence[int] = (8, 12, 16, 24)) -> UNet:
    """Return a small U-Net; the argument is that of ``UNet``."""
    torch.manual_seed(0)
    return UNet(widths)


def build_large() -> UNet:
    """Return a U-Net with 32 to 192 channels (1.9 million parameters)."""
    return build((32, 64, 128, 192))


def example_inputs(batch_size: int) -> tuple[Tensor, ...]:
    """Return images of shape ``(batch_size, 3, SIZE, SIZE)``."""
    return next(batches(batch_size))[0]


def loss(output: Tensor, mask: Tensor) -> Tensor:
    """Return the mean binary cross-entropy over the pixels."""
    return F.binary_cross_entropy_with_logits(output, mask)


def batches(batch_size: int, seed: int = 0) -> Iterator[tuple[tuple[Tensor], tuple[Tensor]]]:
    """Yield noisy images of a disc, and the mask of the disc."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.arange(SIZE, dtype=torch.float32)
    while True:
        centre = torch.rand(batch_size, 2, 1, 1, generator=generator) * SIZE
        radius = torch.rand(batch_size, 1, 1, generator=generator) * SIZE / 4 + 3
        distance = (grid[:, None] - centre[:, 0]) ** 2 + (grid[None, :] - centre[:, 1]) ** 2
        mask = (distance < radius**2).float()
        noise = torch.randn(batch_size, 3, SIZE, SIZE, generator=generator)
        yield (mask[:, None] + 0.7 * noise,), (mask,)
