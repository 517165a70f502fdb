"""Modules of the original model, taken out of it as they are.

The model's own code builds it without memory for its weights; a stage copies the modules that it
runs, makes room for their tensors and drops the rest.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from .errors import PipelineError
from .source import load_source

Build = Callable[[], nn.Module]


class Original:
    """``original("blocks.3")`` returns that module of the model.

    Parameters
    ----------
    build
        Builds the model; called once, when the first module is asked for.
    dtype
        Name of the dtype that the model is cast to; None leaves it as built.
    """

    def __init__(self, build: Build, dtype: str | None = None) -> None:
        self._build = build
        self._dtype = None if dtype is None else getattr(torch, dtype)
        self._model: nn.Module | None = None

    def __call__(self, name: str) -> nn.Module:
        """Return a copy of a module; its weights are to be loaded.

        Its tensors are new ones on the default device, or whatever the mode in force makes.

        Raises
        ------
        PipelineError
            If the model cannot be built, or has no such module.
        """
        model = self._built()
        try:
            module = model.get_submodule(name)
        except AttributeError as error:
            raise PipelineError(
                f"the model has no module {name} any more: {error}",
                hint="export again from the model as it is now",
            ) from None
        known: dict[int, Any] = {id(tensor): tensor for tensor in _tensors(model)}
        known |= {id(tensor): _room_for(tensor) for tensor in _tensors(module)}
        with unset_fake_temporarily():
            return copy.deepcopy(module, known)

    def _built(self) -> nn.Module:
        if self._model is None:
            with unset_fake_temporarily(), torch.random.fork_rng(devices=[]):
                self._model = self._without_memory()
        return self._model

    def _without_memory(self) -> nn.Module:
        """Build on meta; a model that looks at values while it is built, with values."""
        try:
            with torch.device("meta"):
                return self._cast(self._build())
        except PipelineError:
            raise
        except Exception:
            return self._with_memory()

    def _with_memory(self) -> nn.Module:
        try:
            with torch.device("cpu"):
                return self._cast(self._build())
        except Exception as error:
            raise PipelineError(
                f"the model's own code fails to build it: {type(error).__name__}: {error}",
                hint="stages/original.py says what it calls; what that imports and reads must be "
                "there",
            ) from error

    def _cast(self, model: nn.Module) -> nn.Module:
        return model if self._dtype is None else model.to(self._dtype)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _room_for(tensor: Tensor) -> Tensor:
    empty = torch.empty(tensor.shape, dtype=tensor.dtype)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(empty, tensor.requires_grad)
    return empty


def from_source(source: str, name: str) -> Build:
    """Return a function that builds the model by ``name()`` of a file of this folder or a module.

    Raises
    ------
    PipelineError
        From the function, if the code is not there.
    """

    def build() -> nn.Module:
        module = load_source(source)
        builder = getattr(module, name, None)
        if builder is None:
            raise PipelineError(
                f"{source} has no {name}, which built the model when it was exported",
                hint="put the code there that the pipeline was exported from, or export again",
            )
        made = builder()
        model: nn.Module = made[0] if isinstance(made, tuple) else made
        return model

    return build


def from_config(folder: str, auto_class: str, version: str) -> Build:
    """Return a function that builds a Hugging Face model from ``folder/config.json``.

    Parameters
    ----------
    auto_class
        Class of transformers that chooses the model's own ("AutoModelForCausalLM").
    version
        The version that the pipeline was exported with.

    Raises
    ------
    PipelineError
        From the function, if transformers is not installed.
    """

    def build() -> nn.Module:
        try:
            transformers = importlib.import_module("transformers")
        except ModuleNotFoundError:
            raise PipelineError(
                "the stages run modules of transformers, which is not installed",
                hint=f"pip install transformers=={version}",
            ) from None
        place = Path(__file__).parents[1] / folder
        config = transformers.AutoConfig.from_pretrained(place, local_files_only=True)
        config.use_cache = False
        model: Any = getattr(transformers, auto_class).from_config(config)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("batched_mm")
        built: nn.Module = model
        return built

    return build
