"""Random graphs of operations with effects: order, memory and names survive every form."""

from __future__ import annotations

import random
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from torch import Tensor, nn

from autosplit.codegen import FLAT
from autosplit.errors import AutosplitError
from autosplit.tracers import trace
from tests.codegen.chain import compare, from_module, make

WIDTH = 6
BINARY = {
    "add": torch.add,
    "multiply": torch.mul,
    "subtract": torch.sub,
    "maximum": torch.maximum,
}


class Steps(nn.Module):
    """Runs instructions on a growing list of values."""

    def __init__(self, instructions: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self.instructions = instructions
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drops = nn.ModuleList(nn.Dropout(0.3) for _ in range(2))
        self.scale = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        values, drawn = [x, x * 2], []
        for kind, first, second in self.instructions:
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(self.step(kind, a, b, second))
            if kind.startswith("drop"):
                drawn.append(values[-1])
        return torch.cat([*drawn, *values[-3:]], 1)

    def step(self, kind: str, a: Tensor, b: Tensor, number: int) -> Tensor:
        if kind in BINARY:
            return BINARY[kind](a, b)
        if kind == "layer":
            return self.layers[number % 3](a)
        if kind == "drop":
            return self.drops[number % 2](a)
        if kind == "dropout":
            return F.dropout(a, 0.4, self.training)
        if kind == "scale":
            return a * self.scale
        if kind == "half":
            left, right = a.chunk(2, 1)
            return torch.cat([right, left], 1)
        if kind == "write":
            copy = a.clone()
            copy.add_(b)
            copy[:, 0] = 0.25
            return copy
        if kind == "view write":
            copy = a * 1.5
            copy[:, 1:3].mul_(2)
            return copy.tanh()
        return a.view(-1, 2, WIDTH // 2).transpose(1, 2).reshape(-1, WIDTH)


KINDS = [*BINARY, "layer", "drop", "dropout", "scale", "half", "write", "view write", "turn"]
INSTRUCTION = st.tuples(st.sampled_from(KINDS), st.integers(0, 20), st.integers(0, 20))


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(INSTRUCTION, min_size=4, max_size=14), st.integers(1, 3), st.integers(0, 99))
@pytest.mark.timeout(300)
def test_random_graphs_are_exact(
    instructions: list[tuple[Any, ...]], count: int, seed: int
) -> None:
    torch.manual_seed(seed)
    loaded = from_module(Steps(instructions), (torch.randn(4, WIDTH),))
    traced = trace(loaded)
    for options in (None, FLAT):
        try:
            chain = make(loaded, count, options=options, traced=traced)
        except AutosplitError:
            continue
        assert not [r for s in chain.sources for r in s.rewrites if r.kind == "flat"]
        train = random.Random(seed).random() < 0.7
        found = compare(chain, train=train, batch_size=3)
        assert found.output == 0
        assert max(found.gradient.values(), default=0) <= 1e-6
