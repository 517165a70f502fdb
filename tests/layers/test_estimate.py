"""Families of operators, their work and what their backward keeps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autosplit.layers.estimate import Estimate
from autosplit.layers.kept import Kept
from autosplit.layers.operators import family_of, kept_by, kind_of
from autosplit.modelspec import load_model
from autosplit.tracers import trace
from autosplit.tracers.base import Trace
from autosplit.types import ModelRef

pytestmark = pytest.mark.timeout(60)

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\n"


def traced(tmp_path: Path, init: str, forward: str) -> Trace:
    path = tmp_path / "model.py"
    path.write_text(
        f"{HEAD}class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n\n    def forward(self, x):\n        {forward}\n\n\n"
        "def build():\n    return Model(), (torch.randn(4, 8, 16),)\n"
    )
    return trace(load_model(ModelRef(spec=f"{path}:build")))


def kept_by_torch(subject: Trace) -> int:
    """Return the bytes of all storages that autograd keeps, state excluded."""
    state = {t.untyped_storage().data_ptr() for t in subject.model.state_dict().values()}
    found: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in state:
            found[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = subject.model(*subject.args)
    assert result is not None
    return sum(storage.nbytes() for storage in found.values())


LINEAR = "self.a = nn.Linear(16, 16)"


@pytest.mark.parametrize(
    "forward",
    [
        "return self.a(x)",
        "return F.silu(self.a(x)) * self.a(x)",
        "return F.relu(self.a(x)).sum(-1)",
        "return torch.tanh(self.a(x)) + x",
        "h = self.a(x); return (h @ h.transpose(1, 2)).softmax(-1) @ h",
        "h = self.a(x); return h / h.norm(dim=-1, keepdim=True)",
        "return self.a(x) / 3.0",
        "return 3.0 * self.a(x) - x",
        "return self.a(x) * x",
        "return F.rms_norm(self.a(x), (16,), self.a.bias)",
        "return F.layer_norm(self.a(x), (16,))",
        "return F.group_norm(self.a(x), 2)",
        "return F.max_pool1d(self.a(x), 2)",
        "h = self.a(x); return h.masked_fill(x > 0, 0.0)",
        "return F.dropout(self.a(x), 0.5, self.training)",
        "return F.dropout(self.a(x), 0.0, self.training)",
        "return torch.cat([self.a(x), x], -1).exp()",
        "q, k, v = self.a(x).view(4, 8, 4, 4).transpose(1, 2), x.view(4, 8, 4, 4).transpose(1, 2),"
        " self.a(x).view(4, 8, 4, 4).transpose(1, 2)\n"
        "        return F.scaled_dot_product_attention(q, k, v)",
    ],
)
def test_what_is_kept_is_what_torch_keeps(tmp_path: Path, forward: str) -> None:
    subject = traced(tmp_path, LINEAR, forward)
    names = [node.name for node in subject.program.operations]
    found = sum(Kept(subject.program).layer(names).values())
    expected = kept_by_torch(subject)
    # Copies of scalars and cast inputs are the rest; never less than torch keeps.
    assert expected - 64 <= found <= 1.3 * expected + 64


def test_under_autocast_the_cast_copies_are_kept(tmp_path: Path) -> None:
    subject = traced(
        tmp_path,
        LINEAR,
        'with torch.autocast("cpu", torch.bfloat16):\n            return self.a(x)',
    )
    names = [node.name for node in subject.program.operations]
    found = sum(Kept(subject.program).layer(names).values())
    assert found == 2 * (4 * 8 * 16 + 16 * 16)
    (work,) = [w for w in Estimate(subject.program).layer(names) if w.family == "product"]
    assert work.dtype == "bfloat16"


def test_backward_does_the_forward_once_for_each_gradient(tmp_path: Path) -> None:
    subject = traced(tmp_path, f"{LINEAR}; self.b = nn.Linear(16, 16)", "return self.b(self.a(x))")
    first, second = subject.program.operations
    estimate = Estimate(subject.program)
    (of_first,) = [w for w in estimate.layer([first.name]) if w.family == "product"]
    (of_second,) = [w for w in estimate.layer([second.name]) if w.family == "product"]
    assert of_first.flops == of_second.flops == 2 * 32 * 16 * 16
    assert of_first.backward_flops == of_first.flops  # the model's input wants no gradient
    assert of_second.backward_flops == 2 * of_second.flops
    (alone,) = Estimate(subject.program, training=False).layer([second.name])
    assert (alone.backward_flops, alone.backward_operations) == (0, 0)


def test_a_lookup_reads_the_rows_it_gives(tmp_path: Path) -> None:
    subject = traced(
        tmp_path, "self.e = nn.Embedding(1000, 16)", "return self.e(x[..., 0].long().abs())"
    )
    names = [node.name for node in subject.program.operations]
    (work,) = [w for w in Estimate(subject.program).layer(names) if w.family == "lookup"]
    assert work.moved_bytes == 2 * 4 * 8 * 16 * 4
    assert work.backward_bytes >= 1000 * 16 * 4


def test_a_module_and_its_function_are_one_kind(tmp_path: Path) -> None:
    subject = traced(tmp_path, "self.n = nn.LayerNorm(16)", "return F.layer_norm(self.n(x), (16,))")
    assert {kind_of(subject.program, node) for node in subject.program.operations} == {"layernorm"}


@pytest.mark.parametrize(
    ("kind", "family", "kept"),
    [
        ("linear", "product", "factors"),
        ("conv", "convolution", "factors"),
        ("scaleddotproductattention", "attention", "attention"),
        ("embedding", "lookup", "indices"),
        ("batchnorm", "normalization", "statistics"),
        ("gelu", "pointwise", "input"),
        ("cat", "copy", "nothing"),
        ("someoneelses", "pointwise", "both"),
    ],
)
def test_families(kind: str, family: str, kept: str) -> None:
    assert (family_of(kind), kept_by(kind)) == (family, kept)
