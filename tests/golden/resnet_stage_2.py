"""Stage 2 of 3 of ResNet.

Holds blocks.4..5, pool, classify.
"""

from torch import nn


class Residual(nn.Module):
    """blocks.4..5.

    Args:
        x: (batch, *, *, *)

    Returns:
        (batch, 24, 6, 6)
    """

    def __init__(self, in_channels, stride, shortcut):
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 24, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(24)
        self.conv2 = nn.Conv2d(24, 24, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(24)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = shortcut

    def forward(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Stage2(nn.Module):
    """Stage 2 of 3.

    Args:
        x: (batch, 16, 12, 12)

    Returns:
        (batch, 6)
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict(
            {
                "4": Residual(
                    16,
                    2,
                    nn.Sequential(
                        nn.Conv2d(16, 24, 1, stride=2, bias=False), nn.BatchNorm2d(24)
                    ),
                ),
                "5": Residual(24, 1, nn.Identity()),
            }
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(24, 6)

    def forward(self, x):
        x = self.blocks["4"](x)
        x = self.pool(self.blocks["5"](x)).flatten(1)
        return self.classify(x)
