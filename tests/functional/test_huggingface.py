"""Hugging Face models with tiny configs: profile, plan, export, verify at two batch sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosplit.types import ModelRef
from autosplit.verification import verify
from tests.functional import walk

pytest.importorskip("transformers")
pytestmark = [pytest.mark.hf, pytest.mark.timeout(300)]

_LLAMA = {
    "vocab_size": 120,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 120, "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 64},
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "mistral": {**_LLAMA, "sliding_window": 8},
    "bert": {
        "vocab_size": 120,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "t5": {
        "vocab_size": 120,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 3,
        "num_decoder_layers": 3,
        "num_heads": 4,
        "decoder_start_token_id": 0,
    },
    "vit": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "image_size": 32,
        "patch_size": 8,
    },
    "whisper": {
        "vocab_size": 120,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 3,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "num_mel_bins": 8,
        "max_source_positions": 24,
        "max_target_positions": 32,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
        "suppress_tokens": None,
        "begin_suppress_tokens": None,
    },
}


def config_dir(name: str, folder: Path) -> Path:
    """Write the config of a tiny model into a folder."""
    place = folder / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps({"model_type": name, **CONFIGS[name]}))
    return place


@pytest.mark.parametrize("name", CONFIGS)
def test_an_export_equals_the_model(name: str, tmp_path: Path) -> None:
    ref = ModelRef(f"hf:{config_dir(name, tmp_path)}", batch_size=2)
    report = verify(walk.exported(ref, 3, tmp_path))
    assert [(check.mode, check.batch_size) for check in report.checks] == [
        ("train", 2),
        ("eval", 2),
        ("train", 3),
        ("eval", 3),
    ]
    walk.assert_equal(report.comparisons, 1e-6)
    for each in report.comparisons:
        if each.kind != "gradients":
            assert each.largest == 0.0, each


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_processes_train_as_the_model(name: str, tmp_path: Path) -> None:
    ref = ModelRef(f"hf:{config_dir(name, tmp_path)}", batch_size=2)
    for check in walk.train_in_processes(walk.exported(ref, 3, tmp_path)):
        walk.assert_equal(check.comparisons, 1e-6)
