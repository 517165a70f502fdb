"""Stage 1 of 2 of GPT.

Holds blocks.3..5, norm, head.
"""

from torch import nn

from .original import original


class Stage1(nn.Module):
    """Stage 1 of 2.

    Args:
        x: (batch, seq, 48)

    Returns:
        (batch, seq, 96)
    """

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict(
            {str(i): original(f"blocks.{i}") for i in range(3, 6)}
        )
        self.norm = nn.LayerNorm(48)
        self.head = nn.Linear(48, 96, bias=False)

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x))
