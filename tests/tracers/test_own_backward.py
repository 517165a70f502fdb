"""Modules with a torch.autograd.Function are recorded as one call, and run by their own code."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosplit.errors import TraceError
from autosplit.layers import group
from autosplit.program import ORIGINAL
from autosplit.tracers import trace
from tests.codegen.chain import from_module


class Doubled(torch.autograd.Function):
    """Its gradient is not that of its forward, so that nothing else can stand for it."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 100 * ctx.factor, None


class Kernel(nn.Module):
    def __init__(self, factor: float, loose: bool = False) -> None:
        super().__init__()
        self.factor = factor
        self.norm = nn.BatchNorm1d(4)
        if loose:
            self.table = torch.ones(4)

    def forward(self, x):
        return Doubled.apply(self.norm(x), self.factor)


class Net(nn.Module):
    def __init__(self, loose: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.kernels = nn.ModuleList(Kernel(factor, loose) for factor in (2.0, 2.0, 3.0))

    def forward(self, x):
        x = self.first(x)
        for kernel in self.kernels:
            x = kernel(x)
        return x


def test_every_module_of_the_class_is_one_call() -> None:
    found = trace(from_module(Net(), (torch.randn(3, 4),)))
    program = found.program
    assert program.tracer == "torch_level"
    names = [node.target for node in program.nodes if node.op == "module"]
    assert names == ["first", "kernels.0", "kernels.1", "kernels.2"]
    for name in names[1:]:
        spec = program.module[name]
        assert spec.constructor is not None
        assert spec.constructor.qualified == ORIGINAL
        assert spec.random
        assert spec.training_state
    written = next(node for node in program.nodes if node.target == "kernels.1").writes_state
    assert "kernels.1.norm.running_mean" in written
    assert [note for note in program.warnings if "a backward of their own" in note]


def test_only_equal_settings_are_one_structure() -> None:
    layers = group(trace(from_module(Net(), (torch.randn(3, 4),))).program).layers
    first, second, third = (each.structure for each in layers if each.module.startswith("kernels"))
    assert first == second
    assert first != third


def test_a_module_with_a_tensor_that_would_be_lost_is_refused() -> None:
    with pytest.raises(TraceError, match=r"uses Doubled, a torch\.autograd\.Function"):
        trace(from_module(Net(loose=True), (torch.randn(3, 4),)))


@pytest.mark.parametrize("training", [True, False])
def test_the_function_is_left_as_it_was(training: bool) -> None:
    before = torch.autograd.Function.__dict__["apply"]
    trace(from_module(Net().train(training), (torch.randn(3, 4),)))
    assert torch.autograd.Function.__dict__["apply"] is before
