"""Specs that name a Hugging Face config: ``hf:DIRECTORY``, built with random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosplit.errors import UsageError
from autosplit.modelspec.meta import building

Inputs = tuple[tuple[Any, ...], dict[str, Any]]

_TASKS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "sequence-classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "image-classification": "AutoModelForImageClassification",
    "audio-classification": "AutoModelForAudioClassification",
    "feature-extraction": "AutoModel",
}
_TEXT_LENGTH = 16
_TARGET_LENGTH = 12


def refuse_missing(directory: str) -> None:
    """Refuse a folder that is not there: the name of a model is none.

    Raises
    ------
    UsageError
        If there is no such folder.
    """
    if not Path(directory).is_dir():
        raise UsageError(
            f"there is no folder {directory}",
            cause="hf: takes a folder of this machine; models are not downloaded",
            hint="give the folder that contains config.json",
        )


def build(
    directory: str, task: str | None, *, on_meta: bool = False
) -> tuple[nn.Module, Callable[[int], Inputs]]:
    """Build the model of a config directory and a function that makes inputs for it.

    Raises
    ------
    UsageError
        If transformers is missing, the directory holds no config, or the task does not exist
        for this kind of model.
    """
    try:
        import transformers
    except ImportError:
        raise UsageError(
            "hf: needs the package transformers", hint="pip install 'autosplit[hf]'"
        ) from None
    refuse_missing(directory)
    try:
        config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    except Exception as error:
        raise UsageError(
            f"{directory} holds no Hugging Face config",
            cause=str(error).strip().split("\n")[0],
            hint="give the folder that contains config.json",
        ) from None
    kind = _task_of(config, task)
    config.use_cache = False
    try:
        with torch.random.fork_rng(devices=[]), building(on_meta):
            torch.manual_seed(0)
            model: nn.Module = getattr(transformers, _TASKS[kind]).from_config(config)
    except ValueError as error:
        raise UsageError(
            f"there is no {kind} model for {config.model_type}",
            cause=str(error).strip().split("\n")[0],
            hint=f"choose --task from: {', '.join(_TASKS)}",
        ) from None
    if hasattr(model, "set_experts_implementation"):
        # The other implementations branch on how many tokens each expert gets.
        model.set_experts_implementation("batched_mm")  # type: ignore[operator]
    return model, lambda batch_size: example_inputs(model, kind, batch_size)


def auto_class(directory: str, task: str | None) -> str:
    """Return the class of transformers that builds the model of a config directory."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
    return _TASKS[_task_of(config, task)]


def _task_of(config: Any, task: str | None) -> str:
    if task is None:
        return _natural_task(config)
    if task not in _TASKS:
        raise UsageError(f"unknown task {task!r}", hint=f"choose one of: {', '.join(_TASKS)}")
    return task


def _natural_task(config: Any) -> str:
    """Return causal language modelling, or what the architecture is for where it cannot do that."""
    from transformers.models.auto import modeling_auto as auto

    mappings = (
        ("speech-seq2seq", auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES),
        ("seq2seq-lm", auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES),
        ("image-classification", auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES),
        ("masked-lm", auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES),
        ("causal-lm", auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES),
        ("audio-classification", auto.MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES),
    )
    causal = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    decoder = getattr(config, "is_decoder", False) or not _is_encoder(config, auto)
    if config.model_type in causal and decoder and not config.is_encoder_decoder:
        return "causal-lm"
    for name, mapping in mappings:
        if config.model_type in mapping:
            return name
    return "feature-extraction"


def _is_encoder(config: Any, auto: Any) -> bool:
    return config.model_type in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def example_inputs(model: nn.Module, task: str, batch_size: int) -> Inputs:
    """Return keyword inputs for one batch, made from the model's config."""
    config: Any = model.config
    generator = torch.Generator().manual_seed(0)
    main = getattr(model, "main_input_name", "input_ids")
    shape: tuple[int, ...]
    if main == "pixel_values":
        shape = (batch_size, config.num_channels, *_image_size(config))
        inputs = {main: torch.randn(shape, generator=generator)}
    elif main == "input_features":
        frames = getattr(config, "max_source_positions", 1500) * 2
        shape = (batch_size, config.num_mel_bins, frames)
        inputs = {main: torch.randn(shape, generator=generator)}
    elif main == "input_values":
        inputs = {main: torch.randn(batch_size, 16000, generator=generator)}
    else:
        inputs = {main: _tokens(config, (batch_size, _length(config, _TEXT_LENGTH)), generator)}
    if getattr(config, "is_encoder_decoder", False):
        length = _length(config, _TARGET_LENGTH)
        inputs["decoder_input_ids"] = _tokens(config, (batch_size, length), generator)
    # A tuple of tensors needs no class of transformers where the stages run.
    return (), {**inputs, "return_dict": False}


def _tokens(config: Any, shape: tuple[int, int], generator: torch.Generator) -> torch.Tensor:
    """Return random tokens that are no special ones, so that no padding is seen in them."""
    vocabulary = config.get_text_config().vocab_size
    names = ("pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id")
    special = {getattr(config, name, None) for name in names}
    allowed = [token for token in range(min(vocabulary, 4096)) if token not in special]
    chosen = torch.randint(0, len(allowed), shape, generator=generator)
    return torch.tensor(allowed)[chosen]


def _length(config: Any, wanted: int) -> int:
    names = ("max_target_positions", "max_position_embeddings", "n_positions")
    limits = [getattr(config, name, None) for name in names]
    return min([wanted, *(limit for limit in limits if isinstance(limit, int) and limit > 0)])


def _image_size(config: Any) -> tuple[int, int]:
    size = getattr(config, "image_size", 224)
    return (size, size) if isinstance(size, int) else (size[0], size[1])
