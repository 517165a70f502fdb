"""Hugging Face models with random weights: exact, and as tidy as our own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from autosplit.codegen import REWRITES, StageSource, without
from tests.codegen.chain import compare, from_module, make
from tests.codegen.test_rewrites import outputs_in

transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.hf, pytest.mark.timeout(300)]

WORDS, WIDTH = 96, 32
TINY = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
GROUPED = {**TINY, "num_key_value_heads": 2, "num_hidden_layers": 4}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def tokens(length: int = 12) -> torch.Tensor:
    return torch.randint(3, WORDS, (2, length))


def model(config: str, name: str, **fields: Any) -> nn.Module:
    torch.manual_seed(0)
    made = getattr(transformers, config)(**fields)
    made.use_cache = False
    found: nn.Module = getattr(transformers, name)(made)
    return found


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], dict[str, Any]], tuple[str, ...]]] = {
    "gpt2": (
        lambda: model(
            "GPT2Config",
            "GPT2LMHeadModel",
            vocab_size=WORDS,
            n_embd=WIDTH,
            n_layer=4,
            n_head=4,
            n_positions=64,
            bos_token_id=1,
            eos_token_id=2,
        ),
        lambda: {"input_ids": tokens()},
        ("transformer.h.2",),
    ),
    "llama": (
        lambda: model("LlamaConfig", "LlamaForCausalLM", **GROUPED),
        lambda: {"input_ids": tokens()},
        ("model.layers.2",),
    ),
    "qwen2": (
        lambda: model("Qwen2Config", "Qwen2ForCausalLM", **GROUPED),
        lambda: {"input_ids": tokens()},
        ("model.layers.2",),
    ),
    "mistral": (
        lambda: model("MistralConfig", "MistralForCausalLM", **GROUPED),
        lambda: {"input_ids": tokens()},
        ("model.layers.2",),
    ),
    "bert": (
        lambda: model("BertConfig", "BertForSequenceClassification", num_hidden_layers=4, **TINY),
        lambda: {"input_ids": tokens(), "attention_mask": torch.ones(2, 12, dtype=torch.long)},
        ("bert.encoder.layer.2",),
    ),
    "t5": (
        lambda: model(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=WORDS,
            d_model=WIDTH,
            d_kv=8,
            d_ff=64,
            num_layers=3,
            num_heads=4,
        ),
        lambda: {"input_ids": tokens(), "decoder_input_ids": tokens(8)},
        ("encoder.block.2", "decoder"),
    ),
    "vit": (
        lambda: model(
            "ViTConfig",
            "ViTForImageClassification",
            hidden_size=WIDTH,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
        ),
        lambda: {"pixel_values": torch.randn(2, 3, 16, 16)},
        (),
    ),
    "whisper": (
        lambda: model(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            vocab_size=WORDS,
            num_mel_bins=8,
            d_model=WIDTH,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            max_source_positions=10,
            max_target_positions=32,
            decoder_start_token_id=1,
            **ENDS,
        ),
        lambda: {"input_features": torch.randn(2, 8, 20), "decoder_input_ids": tokens(6)},
        ("model.decoder",),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_stages_are_exact_and_tidy(
    name: str, check_style: Callable[[Iterable[StageSource]], None]
) -> None:
    build, inputs, cuts = MODELS[name]
    chain = make(from_module(build(), (), inputs()), 2, at=cuts)
    assert not [note for s in chain.sources for note in s.rewrites if note.kind == "flat"]
    check_style(chain.sources)
    for train in (True, False):
        found = compare(chain, train=train, batch_size=3)
        assert found.output == 0
        assert max(found.gradient.values(), default=0) <= 1e-6


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_stages_may_be_cast_or_say_that_they_may_not(name: str) -> None:
    build, inputs, cuts = MODELS[name]
    chain = make(from_module(build(), (), inputs()), 2, at=cuts)
    fixed = {line.partition(":")[0] for source in chain.sources for line in source.fixed_at}
    assert fixed == ({"modeling_llama.py"} if name == "llama" else set())
    if not fixed:
        expected, computed = outputs_in(chain, torch.bfloat16)
        assert all(map(torch.equal, expected, computed))


@pytest.mark.parametrize("rewrite", REWRITES)
def test_stages_are_exact_without_a_rewrite(rewrite: str) -> None:
    build, inputs, cuts = MODELS["llama"]
    chain = make(from_module(build(), (), inputs()), 2, at=cuts, options=without([rewrite]))
    assert compare(chain, train=True, batch_size=3).output == 0
