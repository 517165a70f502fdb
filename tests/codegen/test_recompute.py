"""Modules computed again in backward: the same gradients, from fewer saved bytes."""

from __future__ import annotations

import copy
import random
from collections.abc import Collection
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from autosplit.stages import modules_to_recompute
from autosplit.targets.templates.torch.pipeline.recompute import compute_again
from autosplit.tracers import trace
from tests.codegen.chain import Chain, from_module
from tests.codegen.test_samples import CUTS, chain

State = dict[str, torch.Tensor]


def run(made: Chain, again: Collection[str]) -> tuple[State, State, int]:
    """Return gradients, buffers and the bytes that backward keeps; ``again`` are operations."""
    model = copy.deepcopy(made.loaded.model).train()
    made.load(model)
    for spec, stage in zip(made.specs, made.stages, strict=True):
        modules = modules_to_recompute(
            made.program, spec.nodes, [name for name in spec.nodes if name in again]
        )
        compute_again(stage, modules, nullcontext())
    state = {id(t) for stage in made.stages for t in (*stage.parameters(), *stage.buffers())}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in state:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    torch.manual_seed(3)
    args, kwargs = copy.deepcopy((made.loaded.args, made.loaded.kwargs))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs = made.run(args, kwargs)
    nbytes = sum(storage.nbytes() for storage in kept.values())
    sum(t.float().square().mean() for t in outputs if t.requires_grad).backward()
    named = [pair for stage in made.stages for pair in stage.named_parameters()]
    gradients = {f"{k} {name}": p.grad for k, (name, p) in enumerate(named) if p.grad is not None}
    buffers = [pair for stage in made.stages for pair in stage.named_buffers()]
    return gradients, {f"{k} {name}": b for k, (name, b) in enumerate(buffers)}, nbytes


def assert_same(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(other[name], tensor, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", CUTS)
def test_gradients_stay_and_less_is_kept(name: str):
    made = chain(name)
    gradients, buffers, nbytes = run(made, ())
    every = [node.name for node in made.program.operations]
    found = run(made, every)
    assert_same(gradients, found[0])
    assert_same(buffers, found[1])
    assert found[2] < 0.7 * nbytes
    draw = random.Random(1)
    for _ in range(3):
        begin = draw.randrange(len(every))
        some = run(made, every[begin : begin + len(every) // 3])
        assert_same(gradients, some[0])
        assert_same(buffers, some[1])
        assert some[2] <= nbytes


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(8, 32)
        self.down = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        return x + self.down(torch.softmax(hidden, -1) * hidden)


class Shifted(nn.Module):
    """Keeps nothing of what goes into it, which may be written to afterwards."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shifted = x + 1
        return torch.softmax(shifted, -1) * shifted


class Net(nn.Module):
    """Blocks, and a change in place of what has gone into one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.shifted = Shifted()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks[1](self.blocks[0](x))
        y = x.sin()
        before = self.shifted(y)
        return self.out(before + y.mul_(2))


def modules(layer: str) -> tuple[str, ...]:
    program = trace(from_module(Net(), (torch.randn(4, 8),))).program
    every = [node.name for node in program.operations]
    return modules_to_recompute(program, every, [name for name in every if layer in name])


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        ("blocks_0", ("blocks.0",)),  # half of what keeps something
        ("", ("blocks.0", "blocks.1")),  # what goes into `shifted` is written to
        ("add", ()),  # keeps nothing
        ("out", ()),  # keeps what goes in alone
    ],
)
def test_modules_are_chosen_for_what_a_plan_computes_again(layer: str, expected: tuple[str, ...]):
    assert modules(layer) == expected


def test_what_is_written_to_afterwards_is_refused():
    stage = nn.Sequential(Shifted())
    compute_again(stage, ["0"], nullcontext())
    x = torch.randn(3, requires_grad=True).clone()
    y = stage(x)
    x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
