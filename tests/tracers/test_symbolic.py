from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from autosplit.tracers import trace
from tests.tracers.helpers import assert_same, loaded


class Sizes(nn.Module):
    """Computes sizes in the ways that models do."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(50, 8)

    def forward(self, ids):
        x = self.embedding(ids)
        batch, seq, width = x.shape
        if self.kind == "flat":
            return x.view(batch * seq, width).reshape(batch, seq * width)
        if self.kind == "rounded":
            return torch.nn.functional.pad(x, (0, 0, 0, -seq % 4))
        if self.kind == "half":
            return x[:, seq // 2 :] * (seq / 2) ** 0.5
        if self.kind == "largest":
            return x.new_zeros(batch, max(seq, 5)).cumsum(1) + seq
        return x.repeat_interleave(2, dim=1)[:, 1:] / math.prod((batch, 2))


@pytest.mark.parametrize("kind", ["flat", "rounded", "half", "largest", "repeated"])
def test_sizes_are_expressions_over_batch_and_sequence(kind):
    found = trace(loaded(Sizes(kind), torch.randint(0, 50, (4, 9))))
    # max() of Python compares: the larger one is chosen once and for all.
    told = ["seq >= 5" in warning for warning in found.program.warnings]
    assert told == ([True] if kind == "largest" else [])
    assert [symbol.name for symbol in found.program.symbols] == ["batch", "seq"]
    for shape in ((2, 11), (5, 14)):
        assert_same(found, torch.randint(0, 50, shape))


def test_equal_example_sizes_stay_different_symbols():
    found = trace(loaded(Sizes("flat"), torch.randint(0, 50, (6, 6))))
    output = found.program.node[found.program.outputs[0]].value
    assert output.shape[0] == "batch"
    assert_same(found, torch.randint(0, 50, (3, 10)))


def test_a_pinned_size_is_said_and_the_other_stays_free():
    class Pinned(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 8)
            self.position = nn.Parameter(torch.rand(9, 8))

        def forward(self, ids):
            return self.embedding(ids) + self.position

    found = trace(loaded(Pinned(), torch.randint(0, 50, (4, 9))))
    assert [symbol.name for symbol in found.program.symbols] == ["batch"]
    assert len(found.program.warnings) == 1
    assert "'seq' is fixed" in found.program.warnings[0]


class Branching(nn.Module):
    """Does other operations for long sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)

    def forward(self, ids):
        x = self.embedding(ids)
        return x if ids.shape[1] <= 64 else x.mean(1, keepdim=True)


def test_a_branch_on_a_size_is_told_with_its_condition_and_line() -> None:
    found = trace(loaded(Branching(), torch.randint(0, 50, (3, 12)))).program
    (warning,) = found.warnings
    assert "the stages hold where seq <= 64 (" in warning
    assert "test_symbolic.py:" in warning
    assert {symbol.name for symbol in found.symbols} == {"batch", "seq"}
