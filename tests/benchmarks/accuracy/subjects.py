"""The models on which predictions are compared with what happens."""

from __future__ import annotations

from pathlib import Path

from autosplit.types import ModelRef

ROOT = Path(__file__).resolve().parents[3]
SAMPLES = ("gpt", "mlp", "resnet", "unet", "encoder_decoder", "moe")
HUGGING_FACE = ("gpt2", "llama")
NAMES = (*SAMPLES, *(f"hf {name}" for name in HUGGING_FACE))


def reference(name: str, batch_size: int | None = None) -> ModelRef:
    """Return the spec of a model by its name in ``NAMES``."""
    if name.startswith("hf "):
        spec = f"{Path(__file__).with_name('huggingface.py')}:build_{name[3:]}"
    else:
        spec = f"{ROOT / 'sample_models' / name}.py:build_large"
    return ModelRef(spec, batch_size=batch_size)
