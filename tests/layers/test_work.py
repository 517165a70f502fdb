"""Estimates of work: products, convolutions and attention as torch's own counter counts them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autosplit.layers import Work
from autosplit.layers.work import short_name
from autosplit.modelspec import load_model
from autosplit.tracers import trace
from autosplit.types import ModelRef
from tests.layers.programs import Builder

SOURCE = """
import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1, groups=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.up = nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.kernel = nn.Parameter(torch.randn(4, 6, 3, 3))
        self.project = nn.Linear(16, 24, bias=False)

    def forward(self, x):
        y = F.conv2d(self.up(self.grouped(self.conv(x))), self.kernel, padding=1)
        rows = y.flatten(2)[..., :16]
        q, k, v = self.project(rows).chunk(3, -1)
        a = F.scaled_dot_product_attention(q, k, v)
        return torch.einsum("bik,bjk->bij", a, k) @ v + torch.bmm(q, k.transpose(1, 2)) @ v


def build():
    return Model(), (torch.randn(2, 3, 8, 8),)
"""


@pytest.mark.timeout(60)
def test_heavy_operations_are_counted_as_torch_counts_them(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(SOURCE)
    subject = trace(load_model(ModelRef(spec=f"{path}:build")))
    work = Work(subject.program)
    found = sum(work.flops(node) for node in subject.program.operations if work.is_heavy(node))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        subject.model(*subject.args)
    assert found == counter.get_total_flops()
    assert isinstance(subject.model, nn.Module)


def test_views_move_nothing_and_products_are_heavy() -> None:
    build = Builder()
    x = build.input("x")
    view = build.op("view", "torch.Tensor.view", x, view_of=x)
    weight = build.parameter("weight")
    product = build.op("product", "torch.nn.functional.linear", view, weight)
    program = build.build(build.op("act", "torch.relu", product))
    work = Work(program)
    assert work.moved_bytes(program.node["view"]) == 0
    assert work.flops(program.node["view"]) == 0
    assert work.flops(program.node["product"]) == 2 * 64 * 512 * 512
    assert work.flops(program.node["act"]) == 64 * 512
    assert [work.is_heavy(program.node[name]) for name in ("view", "product", "act")] == [
        False,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("torch.nn.functional.linear", "linear"),
        ("torch.ops.aten.addmm.default", "addmm"),
        ("torch.Tensor.mT.__get__", "mT"),
        ("operator.getitem", "getitem"),
    ],
)
def test_short_names(target: str, name: str) -> None:
    assert short_name(target) == name
