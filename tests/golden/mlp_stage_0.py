"""Stage 0 of 2 of MLP.

Holds layers.0..2.
"""

import torch
from torch import nn


class Layer(nn.Module):
    """layers.0..2.

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


class Stage0(nn.Module):
    """Stage 0 of 2.

    Args:
        x: (batch, 32)

    Returns:
        (batch, 32)
    """

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(32, 64), Layer(64, 256), Layer(256, 32)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
