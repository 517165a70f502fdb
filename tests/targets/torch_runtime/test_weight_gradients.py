"""Weight gradients put off are those that backward would have computed at once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from autosplit.targets.templates.torch.pipeline.weight_gradients import LaterWeightGradients


class Products(nn.Module):
    """Every product whose weight gradient is put off, beside those whose is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(8, 16)
        self.twice = nn.Linear(16, 8, bias=False)
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.wide, self.shift = nn.Parameter(torch.randn(8, 12)), nn.Parameter(torch.randn(12))
        self.embedding = nn.Embedding(10, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.never = nn.Linear(2, 2)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.conv2d = nn.Conv2d(3, 12, 3, padding=1, stride=2)
        self.conv1d = nn.Conv1d(12, 6, 3, padding=1, groups=2)
        self.conv3d = nn.Conv3d(1, 2, 2, dilation=2, padding="same")
        self.norm = nn.BatchNorm2d(12)

    def forward(self, x: Tensor, image: Tensor, ids: Tensor) -> Tensor:
        h = self.twice(self.linear(x).relu_()) + self.embedding(ids)
        h = torch.matmul(torch.tanh(self.frozen(h @ self.matrix)), self.matrix)
        h = self.twice(self.linear(h + self.attention(h, h, h)[0]))
        h = torch.addmm(self.shift, h.reshape(-1, 8), self.wide).view(*x.shape[:2], 12)
        h = F.linear(h.transpose(0, 1)[..., :8], self.twice.weight.t())
        seen = self.conv1d(self.norm(self.conv2d(image)).relu_().flatten(2))
        deep = self.conv3d(image[:, :1].unsqueeze(2).expand(-1, -1, 4, -1, -1))
        return h.softmax(-1).pow(2).mean() + seen.pow(2).mean() + deep.pow(2).mean()


def backward(model: Products, later: LaterWeightGradients | None, needs_grad: bool) -> list[Tensor]:
    """Run three micro-batches backward; return the gradients of the input."""
    generator = torch.Generator().manual_seed(1)
    found = []
    for _ in range(3):
        x = torch.randn(2, 5, 8, generator=generator).requires_grad_(needs_grad)
        image = torch.randn(2, 3, 6, 6, generator=generator)
        ids = torch.randint(0, 10, (2, 5), generator=generator)
        if later is None:
            model(x, image, ids).backward()
        else:
            with later:
                loss = model(x, image, ids)
            loss.backward()
            later.take()()
        found.append(x.grad)
    return found


@pytest.mark.parametrize("needs_grad", [True, False])
def test_gradients_are_those_computed_at_once(needs_grad: bool):
    expected, found = Products(), Products()
    inputs = backward(expected, None, needs_grad)
    later_inputs = backward(found, LaterWeightGradients(), needs_grad)
    assert all(a is b or torch.equal(a, b) for a, b in zip(inputs, later_inputs, strict=True))
    for (name, one), other in zip(expected.named_parameters(), found.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        # Of a weight used twice the parts are summed in another order.
        if one.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-7)
            assert one.grad.stride() == other.grad.stride(), name


def test_products_alone_are_put_off():
    model, later = Products(), LaterWeightGradients()
    with later:
        loss = model(torch.randn(2, 5, 8), torch.randn(2, 3, 6, 6), torch.zeros(2, 5).long())
    loss.backward()
    waiting = {name for name, p in model.named_parameters() if p.grad is None}
    later.take()()
    frozen = {"frozen.weight", "frozen.bias", "never.weight", "never.bias"}
    products = {"linear.weight", "matrix", "wide", "conv1d.weight", "conv2d.weight"}
    # Used as itself it waits; its transpose in the last product does not.
    assert waiting == frozen | products
    assert {name for name, p in model.named_parameters() if p.grad is None} == frozen


def test_a_gradient_is_computed_once_and_adds_up():
    layer, later = nn.Linear(3, 3), LaterWeightGradients()
    x = torch.ones(2, 3)
    with later:
        layer(x).sum().backward()
        first = later.take()
        layer(x).sum().backward()
        second = later.take()
    assert layer.weight.grad is None
    second()
    once = layer.weight.grad.clone()
    first()
    later.take()()
    assert torch.equal(layer.weight.grad, 2 * once)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_multiplies_in_its_own_dtype(dtype: torch.dtype):
    layer = nn.Sequential(nn.Linear(6, 6), nn.Conv1d(1, 2, 3))
    other, later = copy.deepcopy(layer), LaterWeightGradients()
    x = torch.randn(4, 1, 6)
    with torch.autocast("cpu", dtype=dtype):
        plain = layer(x)
        with later:
            found = other(x)
    assert found.dtype == plain.dtype == dtype
    plain.float().sum().backward()
    found.float().sum().backward()
    later.take()()
    for one, two in zip(layer.parameters(), other.parameters(), strict=True):
        assert two.grad.dtype == torch.float32
        assert torch.equal(one.grad, two.grad)


def test_without_gradients_nothing_waits():
    layer, later = nn.Linear(3, 3), LaterWeightGradients()
    with later, torch.no_grad():
        layer(torch.ones(2, 3))
    with later:
        layer(torch.ones(3))
    assert later._waiting == []
