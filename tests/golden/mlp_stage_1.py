"""Stage 1 of 2 of MLP.

Holds layers.3..5, classify.
"""

import torch
from torch import nn


class Layer(nn.Module):
    """layers.3..5.

    Args:
        x: (batch, *)

    Returns:
        (batch, *)
    """

    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)
        self.dropout = nn.Dropout(0.05)

    def forward(self, x):
        return self.dropout(torch.relu(self.norm(self.linear(x))))


class Stage1(nn.Module):
    """Stage 1 of 2.

    Args:
        x: (batch, 32)

    Returns:
        (batch, 8)
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict(
            {"3": Layer(32, 32), "4": Layer(32, 384), "5": Layer(384, 16)}
        )
        self.classify = nn.Linear(16, 8)

    def forward(self, x):
        for i in range(3, 5):
            x = self.layers[str(i)](x)
        return self.classify(self.layers["5"](x))
