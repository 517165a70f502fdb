"""Stage 2 of 3 of UNet.

Holds up.1..2, out.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Convolution(nn.Module):
    """up.1.first, up.1.second, up.2.first, up.2.second.

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


class Up(nn.Module):
    """up.1..2.

    Args:
        x: (batch, *, *, *)
        skip: (batch, *, *, *)

    Returns:
        (batch, *, *, *)
    """

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.first = Convolution(in_channels, out_channels)
        self.second = Convolution(out_channels, out_channels)

    def forward(self, x, skip):
        x = F.interpolate(x, scale_factor=2.0)
        return self.second(self.first(torch.cat([x, skip], dim=1)))


class Stage2(nn.Module):
    """Stage 2 of 3.

    Args:
        skip: (batch, 8, 32, 32)
        skip_2: (batch, 12, 16, 16)
        x: (batch, 16, 8, 8)

    Returns:
        (batch, 32, 32)
    """

    def __init__(self):
        super().__init__()
        self.up = nn.ModuleDict({"1": Up(28, 12), "2": Up(20, 8)})
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, skip, skip_2, x):
        skips = [skip, skip_2]
        for up in self.up.values():
            x = up(x, skips.pop())
        return self.out(x).squeeze(1)
