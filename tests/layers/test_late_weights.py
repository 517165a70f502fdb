"""What the planner takes for put off is what the runtime puts off."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autosplit.layers import group
from autosplit.layers.late_weights import has_late_weights
from autosplit.modelspec import load_model
from autosplit.targets.templates.torch.pipeline.weight_gradients import LaterWeightGradients
from autosplit.tracers import trace
from autosplit.types import ModelRef
from autosplit.verification.reference import loss_of

ROOT = Path(__file__).resolve().parents[2]
HARD = ROOT / "tests" / "functional"


@pytest.mark.parametrize(
    "spec",
    [
        *(f"{ROOT}/sample_models/{name}.py:build" for name in ("gpt", "resnet", "moe", "unet")),
        f"{HARD}/traps.py:frozen_start",
        f"{HARD}/traps.py:used_twice",
        f"{HARD}/traps.py:transposed",
        f"{HARD}/hard_models.py:root_parameters",
        f"{HARD}/hard_models.py:branches",
    ],
)
def test_the_runtime_puts_off_the_same_weights(spec: str):
    loaded = load_model(ModelRef(spec, batch_size=2))
    program = trace(loaded).program
    model = loaded.model.train()
    model.zero_grad(set_to_none=True)
    later = LaterWeightGradients()
    with later:
        output = model(*loaded.args, **loaded.kwargs)
        loss_of(None, output).backward()
    before = {name for name, p in model.named_parameters() if p.grad is not None}
    later.take()()
    after = {name for name, p in model.named_parameters() if p.grad is not None}
    layers = group(program).layers
    put_off = {
        name
        for layer in layers
        if has_late_weights(program, layer.nodes)
        for name in program.states_in(layer.nodes)
    }
    assert after - before
    assert after - before <= put_off
    uses = Counter(name for layer in layers for name in program.states_in(layer.nodes))
    matrices = {name for name in before if program.state[name].shape[1:] and uses[name] == 1}
    for layer in layers:
        held = set(program.states_in(layer.nodes)) & matrices
        if held and len(layer.nodes) == 1:
            assert not has_late_weights(program, layer.nodes), layer.name
