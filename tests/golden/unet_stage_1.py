"""Stage 1 of 3 of UNet.

Holds down.2, middle, up.0.
"""

import torch
import torch.nn.functional as F
from torch import nn


class Convolution(nn.Module):
    """down.2.first, down.2.second, middle, up.0.first, up.0.second.

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
    """down.2.

    Args:
        x: (batch, 16, 8, 8)

    Returns:
        (batch, 24, 4, 4)
    """

    def __init__(self):
        super().__init__()
        self.first = Convolution(16, 24)
        self.second = Convolution(24, 24)

    def forward(self, x):
        return self.second(self.first(F.max_pool2d(x, 2)))


class Up(nn.Module):
    """up.0.

    Args:
        x: (batch, 24, 4, 4)
        skip: (batch, 16, 8, 8)

    Returns:
        (batch, 16, 8, 8)
    """

    def __init__(self):
        super().__init__()
        self.first = Convolution(40, 16)
        self.second = Convolution(16, 16)

    def forward(self, x, skip):
        x = F.interpolate(x, scale_factor=2.0)
        return self.second(self.first(torch.cat([x, skip], dim=1)))


class Stage1(nn.Module):
    """Stage 1 of 3.

    Args:
        x: (batch, 16, 8, 8)

    Returns:
        (batch, 16, 8, 8)
    """

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleDict({"2": Down()})
        self.middle = Convolution(24, 24)
        self.up = nn.ModuleList([Up()])

    def forward(self, x):
        return self.up[0](self.middle(self.down["2"](x)), x)
