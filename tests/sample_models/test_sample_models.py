"""Each sample model trains, and its inputs, targets and loss fit together."""

from __future__ import annotations

import importlib
from itertools import islice
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

NAMES = ("gpt", "mlp", "resnet", "unet", "encoder_decoder", "moe")


@pytest.fixture(params=NAMES)
def sample(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"sample_models.{request.param}")


def call(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(tree) if torch.is_tensor(leaf)]


def test_loss_falls(sample: ModuleType) -> None:
    model = sample.build()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for inputs, targets in islice(sample.batches(16), 60):
        loss = sample.loss(call(model, inputs), *targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.96 * sum(losses[:5])


def test_batches_are_seeded_and_differ(sample: ModuleType) -> None:
    first, second = (list(islice(sample.batches(3), 2)) for _ in range(2))
    for a, b in zip(tensors(first), tensors(second), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(tensors(first[0][0])[0], tensors(first[1][0])[0])


@pytest.mark.parametrize("rows", [1, 5])
def test_rows_are_those_asked_for(sample: ModuleType, rows: int) -> None:
    inputs, targets = next(sample.batches(rows))
    assert {leaf.shape[0] for leaf in tensors((inputs, targets))} == {rows}
    assert [leaf.shape for leaf in tensors(sample.example_inputs(rows))] == [
        leaf.shape for leaf in tensors(inputs)
    ]


def test_build_is_deterministic(sample: ModuleType) -> None:
    first, second = sample.build().state_dict(), sample.build().state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_the_large_model_takes_the_same_inputs(sample: ModuleType) -> None:
    with torch.device("meta"):
        large = sample.build_large()
    small = sample.build()
    assert sum(p.numel() for p in large.parameters()) > 20 * sum(
        p.numel() for p in small.parameters()
    )
    inputs = torch.utils._pytree.tree_map(lambda t: t.to("meta"), sample.example_inputs(2))
    small_shape, large_shape = (
        tensors(call(model.to("meta"), inputs))[0].shape for model in (small, large)
    )
    assert small_shape == large_shape


def test_gpt_ties_its_head() -> None:
    from sample_models import gpt

    model = gpt.build()
    assert model.head.weight is model.tokens.weight


def test_moe_leaves_exploration_without_gradient() -> None:
    from sample_models import moe

    model = moe.build()
    inputs, targets = next(moe.batches(2))
    moe.loss(model(**inputs), *targets).backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == {f"blocks.{i}.experts.exploration.weight" for i in range(4)}
    assert model(**inputs, explore=True)["logits"].shape == model(**inputs)["logits"].shape
