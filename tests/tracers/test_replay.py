from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit.modelspec import load_model
from autosplit.program import TrainingSwitch
from autosplit.tracers import trace
from autosplit.tracers.replay import compile_nodes, run_whole
from autosplit.types import ModelRef
from tests.tracers import models
from tests.tracers.helpers import assert_same, loaded

CASES = [
    "01_tied_lm",
    "02_big_vocab_head",
    "03_unet_long_skips",
    "05_rope_shared_buffer",
    "06_kwargs_labels_dict",
    "08_params_vs_time",
    "09_shape_control_flow",
    "10_batchnorm_inplace",
    "11_reused_module",
    "14_frozen_lora",
]


def in_pieces(found, bounds, values):
    """Run a trace as consecutive pieces, handing values on by name, each piece on copies."""
    names = [node.name for node in found.program.operations]
    edges = [0, *sorted(bounds), len(names)]
    for start, stop in itertools.pairwise(edges):
        piece = compile_nodes(found, names[start:stop])
        given_values = [
            values[name].clone() if clone else values[name]
            for name, clone in zip(piece.inputs, piece.clone, strict=True)
        ]
        values.update(zip(piece.outputs, piece(*given_values), strict=True))
    return [values[name] for name in found.program.output_tree.values()]


@settings(max_examples=25, deadline=None)
@given(bounds=st.sets(st.integers(1, 20), max_size=3))
def test_pieces_make_the_whole(bounds):
    torch.manual_seed(0)
    found = trace(loaded(models.Unpacking().eval(), torch.randn(4, 5, 8)))
    count = len(found.program.operations)
    tuples = {
        position + 1
        for position, node in enumerate(found.program.operations)
        if not node.tensors or isinstance(node.value, tuple)
    }
    x = torch.randn(3, 5, 8)
    cuts = {bound for bound in bounds if bound < count and bound not in tuples}
    with torch.no_grad():
        whole = run_whole(found, (x,), {})
        pieces = in_pieces(found, cuts, {"x": x})
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


def test_sizes_come_from_a_model_input_where_no_value_shows_them():
    found = trace(loaded(models.Averaging(), torch.randn(4, 8)))
    last = found.program.operations[-1]
    piece = compile_nodes(found, [last.name])
    assert piece.inputs == (last.inputs()[0], "x")
    total = torch.randn(8)
    assert torch.equal(piece(total, torch.randn(5, 8))[0], total / 5)


def test_written_inputs_are_marked():
    found = trace(loaded(models.InPlace(), torch.randn(4, 8)))
    names = [node.name for node in found.program.operations]
    start = next(i for i, node in enumerate(found.program.operations) if node.target == "act")
    piece = compile_nodes(found, names[start:])
    assert piece.inputs == ("clone",)
    assert piece.clone == (True,)


def test_switches_follow_the_mode_asked_for():
    found = trace(loaded(models.Modes(), torch.randn(4, 8)))
    node = next(node for node in found.program.operations if "dropout" in node.target)
    assert isinstance(dict(node.kwargs)["training"], TrainingSwitch)
    x = torch.randn(4, 8)
    (still,) = compile_nodes(found, [node.name], training=False)(x)
    (dropped,) = compile_nodes(found, [node.name])(x)
    assert torch.equal(still, x)
    assert not torch.equal(dropped, x)


def test_state_and_device_can_be_replaced():
    found = trace(loaded(models.RootState(), torch.randn(4, 8)))
    names = [node.name for node in found.program.nodes]
    zero = {spec.fqn: torch.zeros(spec.shape) for spec in found.program.states}
    (result,) = compile_nodes(found, names, state=zero)(torch.randn(4, 8))
    assert torch.equal(result, torch.zeros(4, 8))


@pytest.mark.parametrize("name", CASES)
def test_hard_cases_are_exact_at_two_batch_sizes(cases_dir, name):
    path = cases_dir / f"{name}.py"
    found = trace(load_model(ModelRef(f"{path}:build")))
    assert found.program.tracer == "torch_level"
    assert "batch" in found.program.symbol
    for rows in (2, 5):
        other = load_model(ModelRef(f"{path}:build", batch_size=rows))
        other.model.load_state_dict(found.model.state_dict())
        assert_same(found, *other.args, **other.kwargs)
