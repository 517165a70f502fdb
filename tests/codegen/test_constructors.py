"""The emitted constructor of a ``torch.nn`` layer builds the same layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autosplit.codegen.constants import spell
from autosplit.codegen.expressions import Number, transform
from autosplit.codegen.members import Layer, construct
from autosplit.codegen.scopes import StageGraph
from autosplit.codegen.spelling import show
from autosplit.program import Call, ModuleSpec, Program, StateSpec, Tree
from autosplit.stages.types import StageSpec
from autosplit.tracers.leaves import leaf_constructor

LAYERS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(3, 5, bias=False),
    lambda: nn.Linear(3, 5, dtype=torch.bfloat16),
    lambda: nn.Bilinear(2, 3, 4, bias=False),
    lambda: nn.Identity(),
    lambda: nn.Embedding(7, 3, padding_idx=1, max_norm=2.0, sparse=True),
    lambda: nn.EmbeddingBag(7, 3, mode="sum", include_last_offset=True),
    lambda: nn.LayerNorm((4, 4), eps=1e-3, bias=False),
    lambda: nn.LayerNorm((4, 5), elementwise_affine=False),
    lambda: nn.RMSNorm((4, 4), eps=1e-6),
    lambda: nn.GroupNorm(2, 4, eps=1e-3, affine=False),
    lambda: nn.BatchNorm1d(4, momentum=None),
    lambda: nn.BatchNorm2d(4, eps=1e-3, momentum=0.2, affine=False),
    lambda: nn.BatchNorm3d(4, track_running_stats=False),
    lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    lambda: nn.LocalResponseNorm(3, alpha=0.5, k=2.0),
    lambda: nn.Conv1d(4, 8, 3, stride=2, padding="valid", groups=2, bias=False),
    lambda: nn.Conv2d(4, 8, (3, 5), padding="same", padding_mode="reflect"),
    lambda: nn.Conv2d(4, 8, 3, stride=(2, 1), dilation=(1, 2)),
    lambda: nn.Conv3d(2, 4, (1, 2, 3), padding=(0, 1, 1)),
    lambda: nn.ConvTranspose1d(4, 8, 4, stride=2, output_padding=1),
    lambda: nn.ConvTranspose2d(4, 8, (2, 3), stride=2, groups=4, bias=False),
    lambda: nn.MaxPool1d(3, stride=1, ceil_mode=True),
    lambda: nn.MaxPool2d((3, 2), padding=1, dilation=2),
    lambda: nn.AvgPool2d(3, stride=(2, 1), count_include_pad=False),
    lambda: nn.AvgPool3d(2, divisor_override=3),
    lambda: nn.LPPool2d(2.0, (3, 2), stride=2),
    lambda: nn.AdaptiveAvgPool2d((1, None)),
    lambda: nn.AdaptiveAvgPool2d(1),
    lambda: nn.AdaptiveMaxPool1d(3, return_indices=True),
    lambda: nn.FractionalMaxPool2d(3, output_size=(2, 2)),
    lambda: nn.Unfold((2, 3), stride=2),
    lambda: nn.Fold((4, 5), (2, 2), padding=1),
    lambda: nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True),
    lambda: nn.Upsample(size=(3, 4)),
    lambda: nn.PixelShuffle(3),
    lambda: nn.ZeroPad2d((1, 2, 3, 4)),
    lambda: nn.ReflectionPad2d(2),
    lambda: nn.ConstantPad1d((1, 2), 3.5),
    lambda: nn.Flatten(0, 1),
    lambda: nn.Unflatten(1, (2, 3)),
    lambda: nn.Dropout(0.3, inplace=True),
    lambda: nn.Dropout2d(0.25),
    lambda: nn.AlphaDropout(0.1),
    lambda: nn.FeatureAlphaDropout(0.2),
    lambda: nn.GELU("tanh"),
    lambda: nn.ReLU(inplace=True),
    lambda: nn.LeakyReLU(0.2),
    lambda: nn.PReLU(4, init=0.1),
    lambda: nn.ELU(0.5, inplace=True),
    lambda: nn.Hardtanh(-2.0, 2.0),
    lambda: nn.Threshold(0.1, 20.0),
    lambda: nn.Softmax(dim=-1),
    lambda: nn.Softplus(beta=2.0, threshold=10.0),
    lambda: nn.GLU(1),
    lambda: nn.RReLU(0.1, 0.2),
    lambda: nn.CosineSimilarity(dim=2, eps=1e-4),
    lambda: nn.LSTM(4, 6, num_layers=2, bidirectional=True, dropout=0.1, batch_first=True),
    lambda: nn.LSTM(4, 6, proj_size=3),
    lambda: nn.GRU(4, 6, bias=False),
    lambda: nn.RNN(4, 6, nonlinearity="relu"),
    lambda: nn.GRUCell(4, 6, bias=False),
    lambda: nn.LSTMCell(4, 6),
    lambda: nn.MultiheadAttention(8, 2, dropout=0.1, bias=False, kdim=4, vdim=6),
    lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, add_zero_attn=True, batch_first=True),
    lambda: nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.1, reduction="sum"),
    lambda: nn.SmoothL1Loss(beta=0.5),
)


def emitted(layer: nn.Module) -> str:
    """Return the text that builds a layer."""
    constructor = leaf_constructor(layer)
    if constructor is None:
        pytest.skip("traced through: it is no leaf")
    spec = ModuleSpec(
        fqn="layer",
        class_name=type(layer).__name__,
        qualified=constructor.qualified,
        leaf=True,
        constructor=constructor,
        state=tuple(layer.state_dict()),
    )
    states = tuple(
        StateSpec(
            f"layer.{name}",
            "parameter" if isinstance(tensor, nn.Parameter) else "buffer",
            tuple(tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
        )
        for name, tensor in layer.state_dict(keep_vars=True).items()
    )
    root = ModuleSpec("", "Model", "model.Model", leaf=False, children=("layer",))
    calls = (Call(0, "module", "Model", "", None),)
    empty = Tree("tuple")
    program = Program((), calls, (root, spec), states, (), (), empty, empty)
    names = tuple(state.fqn for state in states)
    graph = StageGraph(program, StageSpec(0, 1, (), (), (), (), (), names), {}, [])
    expr = construct(graph, Layer(spec, "layer"))
    return show(transform(expr, lambda leaf: spell(leaf) if isinstance(leaf, Number) else leaf))


def settings(layer: nn.Module) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in vars(layer).items()
        if not name.startswith("_")
    }


@pytest.mark.parametrize("make", LAYERS, ids=lambda make: type(make()).__name__)
def test_emitted_constructors_build_the_same_layer(make: Callable[[], nn.Module]) -> None:
    layer = make()
    text = emitted(layer)
    rebuilt = eval(text, {"nn": nn, "torch": torch})
    assert type(rebuilt) is type(layer), text
    assert repr(rebuilt) == repr(layer), text
    assert settings(rebuilt) == settings(layer), text
    shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in layer.state_dict().items()}
    assert shapes == {n: (t.shape, t.dtype) for n, t in rebuilt.state_dict().items()}, text


def test_most_layers_are_written_as_people_write_them() -> None:
    assert emitted(nn.Linear(3, 5)) == "nn.Linear(3, 5)"
    assert emitted(nn.Dropout(0.1)) == "nn.Dropout(0.1)"
    assert emitted(nn.Conv2d(4, 8, 3, padding=1)) == "nn.Conv2d(4, 8, 3, padding=1)"
    assert emitted(nn.Linear(3, 5, bias=False).requires_grad_(False)) == (
        "nn.Linear(3, 5, bias=False).requires_grad_(False)"
    )
