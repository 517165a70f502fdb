"""Stage 1 of 3 of ResNet.

Holds blocks.2..3.
"""

from torch import nn


class Residual(nn.Module):
    """blocks.2..3.

    Args:
        x: (batch, *, *, *)

    Returns:
        (batch, 16, 12, 12)
    """

    def __init__(self, in_channels, stride, shortcut):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 16, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut

    def forward(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Stage1(nn.Module):
    """Stage 1 of 3.

    Args:
        x: (batch, 12, 24, 24)

    Returns:
        (batch, 16, 12, 12)
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict(
            {
                "2": Residual(
                    12,
                    2,
                    nn.Sequential(
                        nn.Conv2d(12, 16, 1, stride=2, bias=False), nn.BatchNorm2d(16)
                    ),
                ),
                "3": Residual(16, 1, nn.Identity()),
            }
        )

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x
