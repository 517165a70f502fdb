"""Model specs: from what the user typed to a model with example inputs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from autosplit.errors import UsageError
from autosplit.modelspec import inputs as shapes
from autosplit.modelspec.meta import give_constants_memory
from autosplit.modelspec.python import (
    call_builder,
    call_example_inputs,
    import_source,
    split_spec,
)
from autosplit.modelspec.structure import map_tensors, walk_inputs
from autosplit.types import ModelRef

__all__ = ["LoadedModel", "load_model"]

_DEFAULT_BATCH = 4
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}


@dataclass
class LoadedModel:
    """A model ready to be traced.

    Parameters
    ----------
    ref
        What it was made from.
    model
        The model, in the mode in which it was built.
    args, kwargs
        Example inputs.
    symbols
        ``(position of the tensor among all tensors of the inputs, dimension) -> name`` of
        the sizes that may change from run to run.
    batch_dims
        Batch dimension of each tensor of the inputs; None where it has none.
    loss
        ``loss(output, *targets)`` of the spec file, if it defines one.
    batches
        ``batches(batch_size)`` of the spec file, if it defines one.
    example_inputs
        ``example_inputs(batch_size) -> (args, kwargs)``, if the spec has one.
    source
        The file in which the model is defined, if known.
    """

    ref: ModelRef
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    symbols: dict[tuple[int, int], str]
    batch_dims: list[int | None]
    loss: Callable[..., Any] | None = None
    batches: Callable[..., Any] | None = None
    example_inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]] | None = None
    source: Path | None = None


def load_model(ref: ModelRef) -> LoadedModel:
    """Build the model of a spec and its example inputs.

    Raises
    ------
    UsageError
        If the spec cannot be imported or lacks the name, or if the code fails or returns
        something that is no model: with file and line of the fault.
    """
    loaded = _load_huggingface(ref) if ref.spec.startswith("hf:") else _load_python(ref)
    if not any(True for _ in walk_inputs(loaded.args, loaded.kwargs)):
        raise UsageError(
            f"{ref.spec} has no example inputs",
            hint="return (module, args) from it, define example_inputs(batch_size) beside it, "
            "or give --input NAME=SHAPE:DTYPE",
        )
    if ref.dtype is not None:
        _cast(loaded, ref.dtype)
    if ref.autocast is not None:
        _run_under_autocast(loaded.model, ref.autocast)
    if ref.on_meta:
        give_constants_memory(loaded.model)
    if ref.inference:
        loaded.model.eval()
    loaded.symbols = shapes.free_sizes(loaded.args, loaded.kwargs, loaded.batch_dims)
    return loaded


def _load_python(ref: ModelRef) -> LoadedModel:
    source, name = split_spec(ref.spec)
    module = import_source(source)
    model, args, kwargs = call_builder(module, name, on_meta=ref.on_meta)
    maker = _function(module, "example_inputs")
    example_inputs = _sized_inputs(maker, ref.batch_size) if maker else None
    own = args is not None or kwargs is not None
    if maker is not None and example_inputs is None and not own:
        args, kwargs = call_example_inputs(maker, None)
    elif maker is not None and example_inputs is not None and (not own or ref.batch_size):
        args, kwargs = example_inputs(ref.batch_size or _default_batch(maker))
    loaded = LoadedModel(
        ref,
        model,
        tuple(args or ()),
        dict(kwargs or {}),
        {},
        [],
        loss=_function(module, "loss"),
        batches=_function(module, "batches"),
        example_inputs=example_inputs,
        source=Path(module.__file__).resolve() if module.__file__ else None,
    )
    return _finish_inputs(loaded)


def _load_huggingface(ref: ModelRef) -> LoadedModel:
    from autosplit.modelspec import huggingface

    model, example_inputs = huggingface.build(ref.spec[len("hf:") :], ref.task, on_meta=ref.on_meta)
    args, kwargs = example_inputs(ref.batch_size or _DEFAULT_BATCH)
    loaded = LoadedModel(
        ref,
        model,
        args,
        kwargs,
        {},
        [],
        example_inputs=example_inputs,
        source=Path(inspect.getfile(type(model))),
    )
    return _finish_inputs(loaded)


def _finish_inputs(loaded: LoadedModel) -> LoadedModel:
    """Apply overrides, find the batch dimensions and bring the batch to the asked size."""
    ref = loaded.ref
    args, kwargs = loaded.args, loaded.kwargs
    if ref.inputs:
        parameters = list(inspect.signature(loaded.model.forward).parameters)
        args, kwargs = shapes.apply_overrides(ref.inputs, args, kwargs, parameters)
    batch_dims = None
    if loaded.example_inputs is not None and not ref.inputs:
        batch_dims = _compared(loaded.example_inputs, args, kwargs)
    if batch_dims is None:
        batch_dims = shapes.batch_dimensions(args, kwargs)
    if ref.batch_size is not None:
        args, kwargs = shapes.resize_batch(args, kwargs, batch_dims, ref.batch_size)
    loaded.args, loaded.kwargs, loaded.batch_dims = args, kwargs, batch_dims
    return loaded


def _compared(
    example_inputs: Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> list[int | None] | None:
    """Return batch dimensions from example_inputs at two sizes, if it gives such inputs."""
    found = shapes.compared_batch_dimensions(example_inputs(2), example_inputs(3))
    same = found is not None and len(found) == sum(1 for _ in walk_inputs(args, kwargs))
    return found if same else None


def _sized_inputs(
    maker: Callable[..., Any], batch_size: int | None
) -> Callable[[int], tuple[tuple[Any, ...], dict[str, Any]]] | None:
    """Return ``example_inputs`` as a function of the batch size; None if it takes none.

    Raises
    ------
    UsageError
        If it takes none although a size is asked for.
    """
    if inspect.signature(maker).parameters:
        return functools.partial(call_example_inputs, maker)
    if batch_size:
        raise UsageError(
            f"example_inputs() takes no batch size, so --batch-size {batch_size} cannot be met",
            hint="give it a parameter: def example_inputs(batch_size)",
        )
    return None


def _default_batch(maker: Callable[..., Any]) -> int:
    parameters = list(inspect.signature(maker).parameters.values())
    default = parameters[0].default if parameters else None
    return default if isinstance(default, int) else _DEFAULT_BATCH


def _function(module: Any, name: str) -> Callable[..., Any] | None:
    found = getattr(module, name, None)
    return found if callable(found) else None


def floating_dtype(name: str) -> torch.dtype:
    """Return the floating-point dtype of a name.

    Raises
    ------
    UsageError
        If there is none.
    """
    dtype = getattr(torch, _SHORT.get(name, name), None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise UsageError(f"{name!r} is no floating-point dtype", hint="try bfloat16 or float32")
    return dtype


def _run_under_autocast(model: nn.Module, name: str) -> None:
    """Let the forward of a model run under autocast, wherever its parameters are."""
    dtype = floating_dtype(name)
    forward = model.forward

    @functools.wraps(forward)
    def under_autocast(*args: Any, **kwargs: Any) -> Any:
        device = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast("cpu" if device == "meta" else device, dtype=dtype):
            return forward(*args, **kwargs)

    model.forward = under_autocast


def _cast(loaded: LoadedModel, name: str) -> None:
    dtype = floating_dtype(name)
    loaded.model.to(dtype)

    def change(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    loaded.args = map_tensors(loaded.args, change)
    loaded.kwargs = map_tensors(loaded.kwargs, change)
