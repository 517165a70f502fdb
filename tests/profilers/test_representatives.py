"""A model on meta: measured on one layer of each structure, equal to the real one but for times."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, profile
from autosplit.profilers.flow import returned_values
from autosplit.profilers.stand_ins import Scratch, StandIns
from autosplit.program import TensorSpec
from autosplit.tracers import TRACERS, Trace
from autosplit.types import ModelRef, Profile

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
QUICK = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)

pytestmark = pytest.mark.timeout(120)


def traced(name: str, *, on_meta: bool) -> Trace:
    with torch.device("meta" if on_meta else "cpu"):
        loaded = load_model(ModelRef(spec=f"{SAMPLES / name}.py:build"))
    return TRACERS["torch_level"](loaded)  # type: ignore[operator,no-any-return]


def saved_bytes(found: Profile) -> list[list[int]]:
    nbytes = {storage.index: storage.nbytes for storage in found.storages}
    return [sorted(nbytes[index] for index in layer.saved) for layer in found.layers]


@pytest.mark.parametrize("name", ["gpt", "unet"])
def test_memory_values_and_state_equal_those_of_the_real_model(name: str) -> None:
    real = profile(traced(name, on_meta=False), QUICK)
    found = profile(traced(name, on_meta=True), QUICK)
    assert [layer.name for layer in found.layers] == [layer.name for layer in real.layers]
    assert [layer.flops for layer in found.layers] == [layer.flops for layer in real.layers]
    assert saved_bytes(found) == saved_bytes(real)
    assert sum(s.nbytes for s in found.storages) == sum(s.nbytes for s in real.storages)
    assert found.states == real.states
    assert found.order_edges == real.order_edges
    for mine, theirs in zip(found.values, real.values, strict=True):
        assert dataclasses.replace(mine, storage=None) == dataclasses.replace(theirs, storage=None)
        assert (mine.storage is None) == (theirs.storage is None)
    assert found.whole is None
    assert any("one of each structure" in note for note in found.notes)
    assert all(layer.forward.median_s > 0 for layer in found.layers)


def test_layers_that_are_alike_have_one_time() -> None:
    found = profile(traced("gpt", on_meta=True), QUICK)
    times: dict[str, set[float]] = {}
    for layer in found.layers:
        times.setdefault(layer.structure, set()).add(layer.forward.median_s)
    assert len(times) < len(found.layers)
    assert all(len(medians) == 1 for medians in times.values())


@pytest.mark.slow
def test_the_budget_parts_representatives_but_changes_nothing_else() -> None:
    subject = traced("gpt", on_meta=True)
    whole = profile(subject, QUICK)
    parted = profile(subject, dataclasses.replace(QUICK, resident_bytes=1))
    assert saved_bytes(parted) == saved_bytes(whole)
    assert parted.states == whole.states


def test_gradients_are_known_to_return_where_they_do() -> None:
    subject = traced("encoder_decoder", on_meta=False)
    found = profile(subject, QUICK)
    told = returned_values(subject.program)
    assert all((value.name in told) == value.needs_grad for value in found.values)


def test_inference_on_meta_has_no_backward() -> None:
    found = profile(traced("mlp", on_meta=True), dataclasses.replace(QUICK, inference=True))
    assert all(layer.backward.median_s == 0 and not layer.saved for layer in found.layers)


def test_stand_ins_have_shape_strides_and_dtype() -> None:
    stand_ins = StandIns(traced("mlp", on_meta=True), torch.device("cpu"))
    turned = stand_ins.tensor(TensorSpec((300, 400), "bfloat16", (1, 300)))
    assert (turned.shape, turned.stride(), turned.dtype) == ((300, 400), (1, 300), torch.bfloat16)
    assert 0 < float(turned.float().abs().max()) < 1
    repeated = stand_ins.tensor(TensorSpec((5, 3), "float32", (0, 1)))
    assert repeated.stride() == (0, 1)
    assert stand_ins.tensor(TensorSpec((4,), "bool", (1,))).all()
    assert not stand_ins.tensor(TensorSpec((4,), "int64", (1,))).any()
    assert stand_ins.tensor(TensorSpec((0, 4), "float32", (4, 1))).shape == (0, 4)
    assert stand_ins.tensor(TensorSpec((), "float32", ())).shape == ()


def test_scratch_takes_gradients_of_any_shape() -> None:
    scratch = Scratch(torch.device("cpu"), nbytes=4096)
    for gradient in (torch.ones(3000), torch.ones(70, 30).t(), torch.ones(()), torch.ones(2, 3, 5)):
        scratch(gradient, gradient)
    assert scratch.buffer.view(torch.float32)[0] == 3 + 3 + 1 + 1
