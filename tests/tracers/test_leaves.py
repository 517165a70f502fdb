"""Every layer of torch.nn is either rebuilt exactly or traced through."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from autosplit.program import Sequence
from autosplit.tracers.leaves import is_random, leaf_constructor, updates_state

LAYERS = [
    nn.Linear(3, 4, bias=False),
    nn.Bilinear(2, 3, 4),
    nn.Conv1d(2, 4, 3, padding="same"),
    nn.Conv2d(4, 8, (3, 5), stride=2, padding=1, groups=2, padding_mode="circular"),
    nn.ConvTranspose2d(4, 8, 3, output_padding=1, stride=2),
    nn.BatchNorm2d(4, momentum=0.3, affine=False),
    nn.InstanceNorm1d(4, affine=True),
    nn.LayerNorm((3, 4), elementwise_affine=False),
    nn.LayerNorm(4, bias=False),
    nn.RMSNorm(4),
    nn.GroupNorm(2, 4, eps=1e-3),
    nn.Embedding(10, 4, padding_idx=1),
    nn.EmbeddingBag(10, 4, mode="sum"),
    nn.LSTM(3, 4, num_layers=2, bidirectional=True, proj_size=2),
    nn.GRU(3, 4, bias=False, batch_first=True),
    nn.RNN(3, 4, nonlinearity="relu"),
    nn.LSTMCell(3, 4, bias=False),
    nn.MultiheadAttention(8, 2, bias=False, kdim=4, vdim=6),
    nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True),
    nn.Dropout(0.3, inplace=True),
    nn.GELU(approximate="tanh"),
    nn.ReLU6(inplace=True),
    nn.PReLU(4),
    nn.Softmax(dim=-1),
    nn.LeakyReLU(0.3),
    nn.MaxPool2d(3, ceil_mode=True),
    nn.AdaptiveAvgPool2d((None, 7)),
    nn.Flatten(2),
    nn.Unflatten(1, (2, 3)),
    nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True),
    nn.PixelShuffle(2),
    nn.ZeroPad2d((1, 2, 3, 4)),
    nn.ConstantPad1d(2, 0.5),
    nn.CrossEntropyLoss(ignore_index=3, label_smoothing=0.1),
    nn.Identity(1, key=2),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_layers_are_rebuilt(layer):
    constructor = leaf_constructor(layer)
    assert constructor is not None
    cls = getattr(nn, constructor.qualified.removeprefix("torch.nn."))
    args = [plain(value) for value in constructor.args]
    kwargs = {name: plain(value) for name, value in constructor.kwargs}
    rebuilt = cls(*args, **kwargs)
    assert repr(rebuilt) == repr(layer)
    rebuilt.load_state_dict(layer.state_dict())


def plain(value):
    if isinstance(value, Sequence):
        return tuple(plain(item) for item in value.items)
    return value


def test_equal_sizes_are_written_once():
    constructor = leaf_constructor(nn.Conv2d(3, 4, 3))
    assert constructor is not None
    assert constructor.args == (3, 4, 3)
    assert constructor.kwargs == ()


def test_what_cannot_be_rebuilt_is_traced_through():
    class Own(nn.Linear):
        pass

    changed = nn.Linear(3, 4)
    changed.weight = nn.Parameter(torch.rand(2, 3))
    hooked = nn.Linear(3, 4)
    hooked.register_forward_pre_hook(lambda module, args: args)
    for module in (
        Own(3, 4),
        changed,
        hooked,
        nn.Sequential(nn.ReLU()),
        nn.TransformerEncoderLayer(4, 2),
        nn.CrossEntropyLoss(weight=torch.rand(4)),
        nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),
    ):
        assert leaf_constructor(module) is None


def test_properties_of_layers():
    assert is_random(nn.Dropout(0.1))
    assert not is_random(nn.Dropout(0.0))
    assert is_random(nn.LSTM(3, 4, num_layers=2, dropout=0.1))
    assert updates_state(nn.BatchNorm1d(3))
    assert not updates_state(nn.BatchNorm1d(3, track_running_stats=False))
