"""Modules become operations of a program only where that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from autosplit.program import ORIGINAL
from autosplit.stages import Whole, keep_modules, split
from autosplit.tracers import trace
from tests.codegen.chain import cut, from_module


class Part(nn.Module):
    """Returns several values, takes plain ones, and draws and counts in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x, mask, *, twice=True):
        y = self.drop(self.linear(self.norm(x)))
        return (y * 2 if twice else y), None, y.sum(1)


class Reaching(nn.Module):
    """Uses a parameter of another module."""

    def __init__(self, other: nn.Linear) -> None:
        super().__init__()
        self.other = [other]
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x @ self.other[0].weight * self.scale


class Writing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        x.add_(1)
        return x * self.scale


class Captured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.table = torch.arange(4.0)

    def forward(self, x):
        return x * self.scale + self.table


class Tables(nn.Module):
    """Has no parameters; what it gives is cheap to make again."""

    def forward(self, x):
        return torch.arange(x.shape[0])[:, None] * 1.0


class Records(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return {"y": self.linear(x)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.part = Part()
        self.reaching = Reaching(self.first)
        self.writing = Writing()
        self.captured = Captured()
        self.tables = Tables()
        self.records = Records()
        self.again = Part()
        self.last = nn.Linear(4, 4)

    def forward(self, x):
        table = self.tables(x)
        x, _, sums = self.part(self.first(x), x > 0)
        x = self.captured(self.writing(self.reaching(x) * 1.0)) + sums[:, None]
        x = self.records(x)["y"]
        x = self.again(x, None, twice=False)[0]
        x = x + self.again(x, None, twice=False)[0]
        return self.last(x) + table


def kept(at: Sequence[str]) -> Whole:
    found = trace(from_module(Net(), (torch.randn(3, 4),)))
    assert found.program.tracer == "torch_level"
    stage_of = cut(found.program, len(at) + 1, at)
    return keep_modules(found.program, found.interfaces, stage_of)


def test_calls_become_operations_with_their_results_and_effects() -> None:
    whole = kept(["last"])
    split(whole.program, whole.stage_of, 2)
    assert dict.fromkeys(name for _, name in whole.kept) == {"part": None, "again": None}
    program = whole.program
    nodes = [node for node in program.nodes if node.target in ("part", "again")]
    assert [node.target for node in nodes] == ["part", "again", "again"]
    part = nodes[0]
    assert [value is None for value in part.value or ()] == [False, True, False]
    assert len(part.args) == 2
    assert nodes[1].kwargs == (("twice", False),)
    assert {name.rpartition(".")[0] for name in part.writes_state} == {"part.norm"}
    spec = program.module["part"]
    assert spec.leaf
    assert spec.random
    assert spec.training_state
    assert spec.constructor is not None
    assert spec.constructor.qualified == ORIGINAL
    assert not [node for node in program.nodes if node.target.startswith("part.")]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("reaching", "it uses first.weight, which is not its own"),
        ("writing", "it writes to what it is given"),
        ("captured", "it uses a tensor that is neither parameter nor buffer"),
        ("tables", "it has no parameters, and other stages make its result again"),
        ("records", "it returns another structure than a tensor or a tuple of tensors"),
    ],
)
def test_what_cannot_be_called_as_it_is_says_why(name: str, why: str) -> None:
    assert dict(kept(["last"]).parted)[name] == why


def test_a_module_is_whole_in_every_call_or_in_none() -> None:
    whole = kept(["again.linear"])
    assert dict(whole.parted)["again"] == "a cut goes through it"
    assert {name for _, name in whole.kept} == {"part"}
