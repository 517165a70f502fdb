"""Stage 0 of 3 of UNet.

Holds stem, down.0..1.
"""

import torch.nn.functional as F
from torch import nn


class Convolution(nn.Module):
    """stem, down.0.first, down.0.second, down.1.first, down.1.second.

    Args:
        x: (batch, *, *, *)

    Returns:
        (batch, *, *, *)
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm = nn.GroupNorm(4, out_channels)

    def forward(self, x):
        return F.silu(self.norm(self.conv(x)))


class Down(nn.Module):
    """down.0..1.

    Args:
        x: (batch, *, *, *)

    Returns:
        (batch, *, *, *)
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first = Convolution(in_channels, out_channels)
        self.second = Convolution(out_channels, out_channels)

    def forward(self, x):
        return self.second(self.first(F.max_pool2d(x, 2)))


class Stage0(nn.Module):
    """Stage 0 of 3.

    Args:
        images: (batch, 3, 32, 32)

    Returns:
        skips: 2 x (batch, *, *, *)
        x: (batch, 16, 8, 8)
    """

    def __init__(self):
        super().__init__()
        self.stem = Convolution(3, 8)
        self.down = nn.ModuleList([Down(8, 12), Down(12, 16)])

    def forward(self, images):
        x = self.stem(images)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        return *skips, x
