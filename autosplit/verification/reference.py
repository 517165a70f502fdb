"""The original model on the micro-batches that the export is given."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from autosplit.errors import DataError, UsageError
from autosplit.modelspec import LoadedModel
from autosplit.modelspec.inputs import resize_batch
from autosplit.modelspec.python import blamed, call_example_inputs, fault
from autosplit.modelspec.structure import Path, dotted, map_tensors, walk, walk_inputs
from autosplit.verification.determinism import fixed_randomness


@dataclass(frozen=True)
class MicroBatch:
    """What the model is called with, and what its loss is compared against."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: tuple[Any, ...] = ()

    def copy(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs that the model may write to."""
        return _copy(self.args), _copy(self.kwargs)


@dataclass
class Run:
    """What a run gave, by name; ``structures`` are the outputs as the model returned them."""

    outputs: dict[str, Tensor] = field(default_factory=dict)
    losses: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    structures: list[Any] = field(default_factory=list)


def micro_batches(loaded: LoadedModel, batch_size: int | None, count: int) -> list[MicroBatch]:
    """Return ``count`` different micro-batches of ``batch_size`` rows.

    They come from ``batches(batch_size)`` of the spec file where it can be used, again from its
    beginning where it ends; else the example inputs are changed row by row.

    Raises
    ------
    UsageError
        If ``batches`` fails, or yields nothing or something else than pairs.
    """
    if loaded.loss is not None and loaded.batches is not None and batch_size and _own(loaded):
        with blamed(f"batches({batch_size})", loaded.batches):
            made = list(islice(_endless(loaded.batches, batch_size), count))
        return [_from_batch(each) for each in made]
    args, kwargs = loaded.args, loaded.kwargs
    if batch_size is not None:
        if loaded.example_inputs is not None and _own(loaded):
            args, kwargs = loaded.example_inputs(batch_size)
        args, kwargs = resize_batch(args, kwargs, loaded.batch_dims, batch_size)
    return [MicroBatch(*_varied(args, kwargs, loaded.batch_dims, k)) for k in range(count)]


def loss_of(loss: Callable[..., Any] | None, output: Any, *targets: Any) -> Tensor:
    """Return the loss that is compared.

    ``loss``, the spec file's own, when there are targets for it; else the output named "loss", a
    lone scalar output, or the mean squares of all floating-point outputs.
    """
    if loss is not None and targets:
        with blamed("loss()", loss):
            value = loss(output, *targets)
        return _scalar(value)
    tensors = {dotted(path): tensor for path, tensor in walk(output)}
    floats = {name: each for name, each in tensors.items() if each.is_floating_point()}
    if "loss" in floats:
        return _scalar(floats["loss"])
    if not floats:
        raise DataError("the model returns no floating-point tensor, so there is no loss")
    if len(floats) == 1 and next(iter(floats.values())).dim() == 0:
        return next(iter(floats.values()))
    squares = [each.float().square().mean() for each in floats.values()]
    return torch.stack(squares).sum()


def call_original(model: nn.Module, batch: MicroBatch) -> Any:
    """Run the original model's forward.

    Raises
    ------
    UsageError
        If it fails: the batch is not one that it can run.
    """
    args, kwargs = batch.copy()
    try:
        return model(*args, **kwargs)
    except Exception as error:
        own = sys.modules.get(type(model).__module__)
        found = fault(error, "the original model fails on a batch that verify made", own)
        found.hint = "define example_inputs(batch_size) beside the model"
        raise found from error


def train_reference(loaded: LoadedModel, batches: list[MicroBatch]) -> Run:
    """Run the original model forward and backward on the micro-batches, one after another."""
    model = loaded.model
    model.zero_grad(set_to_none=True)
    with fixed_randomness():
        run = run_training(loaded, batches, partial(call_original, model))
    run.gradients = {name: each.grad for name, each in model.named_parameters()}
    run.buffers = {name: each.clone() for name, each in buffers(model).items()}
    return run


def run_training(
    loaded: LoadedModel,
    batches: list[MicroBatch],
    call: Callable[[MicroBatch], Any],
) -> Run:
    """Run forward and backward on each micro-batch in turn; the loss is the mean over them.

    ``call`` runs the model, or something that stands for it; gradients and buffers are left
    for the caller to collect.
    """
    run = Run()
    for index, batch in enumerate(batches):
        output = call(batch)
        loss = loss_of(loaded.loss, output, *batch.targets)
        keep_outputs(run, index, output)
        run.losses[f"loss of micro-batch {index}"] = loss.detach().clone()
        if loss.requires_grad:
            (loss / len(batches)).backward()  # type: ignore[no-untyped-call]
    return run


def keep_outputs(run: Run, index: int, output: Any, place: Path = ()) -> None:
    """Add one micro-batch's outputs to ``run``; ``place`` is where ``output`` stands."""
    run.structures.append(output)
    for path, tensor in walk(output, place):
        run.outputs[f"{dotted(path) or 'output'} of micro-batch {index}"] = tensor.detach().clone()


def parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters under every name they have."""
    return dict(model.named_parameters(remove_duplicate=False))


def buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers under every name they have."""
    return dict(model.named_buffers(remove_duplicate=False))


def first_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Return for each name the first name of the same tensor."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def _own(loaded: LoadedModel) -> bool:
    """Whether the inputs are those of the spec file, not given on the command line."""
    return not loaded.ref.inputs


def _endless(batches: Callable[..., Any], batch_size: int) -> Iterator[Any]:
    """Yield what ``batches`` yields, from its beginning again after its end."""
    while True:
        count = -1
        for count, batch in enumerate(batches(batch_size)):  # noqa: B007
            yield batch
        if count < 0:
            raise UsageError(f"batches({batch_size}) yields nothing")


def _from_batch(made: Any) -> MicroBatch:
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise UsageError(
            f"batches() yields a {type(made).__name__}",
            hint="yield (inputs, targets), each a tuple",
        )
    inputs, targets = made
    args, kwargs = call_example_inputs(lambda: inputs, None)
    targets = targets if isinstance(targets, (tuple, list)) else (targets,)
    return MicroBatch(args, kwargs, tuple(targets))


def _varied(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch_dims: list[int | None], step: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return inputs that differ from the given ones, but hold no value that these do not."""
    dims = iter(batch_dims)
    count = sum(1 for _ in walk_inputs(args, kwargs))
    if count != len(batch_dims):
        raise DataError(f"{count} tensors among the inputs, {len(batch_dims)} were traced")

    def change(_: Any, tensor: Tensor) -> Tensor:
        dim = next(dims)
        if dim is None or not step:
            return tensor
        if tensor.is_floating_point():
            return tensor.flip(dim) * (1 + 0.1 * step)
        last = tensor.dim() - 1
        return tensor.roll(step, dim if last == dim or tensor.dtype == torch.bool else last)

    return map_tensors(args, change), map_tensors(kwargs, change)


def _copy(value: Any) -> Any:
    return map_tensors(value, lambda _, tensor: tensor.clone())


def _scalar(loss: Any) -> Tensor:
    if not isinstance(loss, Tensor) or loss.dim():
        raise DataError(
            "the loss is not one number",
            cause=f"it is a {type(loss).__name__}"
            + (f" of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else ""),
            hint="return the mean over the rows",
        )
    return loss
