"""Stage 0 of 3 of ResNet.

Holds stem, norm, relu, blocks.0..1.
"""

from torch import nn


class Residual(nn.Module):
    """blocks.0..1.

    Args:
        x: (batch, 12, 24, 24)

    Returns:
        (batch, 12, 24, 24)
    """

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Identity()

    def forward(self, x):
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class Stage0(nn.Module):
    """Stage 0 of 3.

    Args:
        images: (batch, 3, 24, 24)

    Returns:
        (batch, 12, 24, 24)
    """

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.relu = nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList([Residual() for _ in range(2)])

    def forward(self, images):
        x = self.relu(self.norm(self.stem(images)))
        for block in self.blocks:
            x = block(x)
        return x
