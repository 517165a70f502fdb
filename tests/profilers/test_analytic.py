"""A modelled profile: the memory that torch really keeps, an order of layers that is really so."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from autosplit.errors import DataError, UsageError
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, profile
from autosplit.tracers import trace
from autosplit.tracers.base import Trace
from autosplit.types import LayerProfile, ModelRef, Profile

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
QUICK = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)

pytestmark = pytest.mark.timeout(120)


def traced(name: str) -> Trace:
    return trace(load_model(ModelRef(spec=f"{SAMPLES / name}.py:build")))


def modelled(subject: Trace, device: str = "cpu", **options: object) -> Profile:
    return profile(subject, ProfileOptions(analytic=device, **options))  # type: ignore[arg-type]


def saved_bytes(found: Profile, layer: LayerProfile) -> int:
    nbytes = {storage.index: storage.nbytes for storage in found.storages}
    return sum(nbytes[index] for index in layer.saved)


@pytest.mark.parametrize("name", ["gpt", "encoder_decoder", "mlp", "resnet", "unet"])
def test_backward_keeps_what_is_said_that_it_keeps(name: str) -> None:
    subject = traced(name)
    found, real = modelled(subject), profile(subject, QUICK)
    assert [layer.name for layer in found.layers] == [layer.name for layer in real.layers]
    for mine, theirs in zip(found.layers, real.layers, strict=True):
        kept, expected = saved_bytes(found, mine), saved_bytes(real, theirs)
        assert kept == pytest.approx(expected, rel=0.06), mine.name
    assert sum(s.nbytes for s in found.storages) == pytest.approx(
        sum(s.nbytes for s in real.storages), rel=1e-3
    )
    assert found.states == real.states
    for mine, theirs in zip(found.values, real.values, strict=True):
        assert dataclasses.replace(mine, storage=None) == dataclasses.replace(theirs, storage=None)


def test_modules_of_attention_are_taken_to_keep_more_rather_than_less() -> None:
    subject = traced("moe")
    found, real = modelled(subject), profile(subject, QUICK)
    for mine, theirs in zip(found.layers, real.layers, strict=True):
        assert saved_bytes(found, mine) >= 0.94 * saved_bytes(real, theirs), mine.name


def test_layers_that_take_long_are_told_from_those_that_do_not() -> None:
    subject = traced("mlp")
    sides = (modelled(subject), profile(subject, QUICK))
    seconds = [
        [layer.forward.median_s + layer.backward.median_s for layer in p.layers] for p in sides
    ]
    ranks = [np.argsort(np.argsort(each)) for each in seconds]
    assert np.corrcoef(*ranks)[0, 1] > 0.4


def test_the_profile_says_that_nothing_was_measured() -> None:
    found = modelled(traced("mlp"), "h100 sxm")
    assert found.device.clock == "model"
    assert (found.device.kind, found.device.name) == ("cuda", "NVIDIA H100 SXM")
    assert found.whole is None
    assert "nothing was measured" in found.notes[0]
    assert "assumed" in found.notes[1]
    assert all(layer.forward.spread_s == 0 for layer in found.layers)


def test_a_model_on_meta_gives_the_same_profile() -> None:
    with torch.device("meta"):
        empty = traced("gpt")
    assert modelled(empty, "l4") == modelled(traced("gpt"), "l4")


def test_inference_has_no_backward_and_keeps_nothing() -> None:
    found = modelled(traced("gpt"), "t4", inference=True)
    assert not found.training
    assert not found.storages
    assert all(layer.backward.median_s == 0 for layer in found.layers)
    attention = [layer for layer in found.layers if layer.cache_bytes]
    width = 48
    assert [layer.cache_bytes for layer in attention] == [2 * 4 * width] * 6


def test_factors_from_a_file_are_used_and_named(tmp_path: Path) -> None:
    path = tmp_path / "factors.toml"
    path.write_text('source = "a test"\nstart_s = 0.25\n')
    found = modelled(traced("mlp"), "t4", factors=str(path))
    assert "a test" in found.notes[1]
    assert min(layer.forward.median_s for layer in found.layers) >= 0.25
    with pytest.raises(DataError, match="does not exist"):
        modelled(traced("mlp"), "t4", factors=str(tmp_path / "none.toml"))


def test_factors_of_another_device_are_told(tmp_path: Path) -> None:
    path = tmp_path / "factors.toml"
    path.write_text('device = "h100-sxm"\n')
    assert (
        "fitted on h100-sxm and are applied to t4"
        in (modelled(traced("mlp"), "t4", factors=str(path)).notes[0])
    )
    same = modelled(traced("mlp"), "h100-sxm", factors=str(path))
    assert not any("applied to" in note for note in same.notes)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(UsageError, match="no device 'gpu9000'"):
        modelled(traced("mlp"), "gpu9000")


@pytest.mark.hf
def test_heads_of_keys_that_queries_share_are_kept_once(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        max_position_embeddings=64,
    )
    config.save_pretrained(tmp_path)
    subject = trace(load_model(ModelRef(spec=f"hf:{tmp_path}", task="causal-lm")))
    found = modelled(subject, "h200", inference=True)
    heads, width, nbytes = 2, 16, 4
    held = [layer.cache_bytes for layer in found.layers if layer.cache_bytes]
    assert held == [2 * heads * width * nbytes] * 2
