"""Example inputs: which dimension is the batch, which sizes are free, overrides, resizing."""

from __future__ import annotations

import re
from typing import Any

import torch

from autosplit.errors import UsageError
from autosplit.modelspec.structure import Path, map_tensors, walk_inputs

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_OVERRIDE = re.compile(r"(?P<name>[^\W\d]\w*)=(?P<shape>\d+(x\d+)*)?(:(?P<dtype>\w+))?")


def batch_dimensions(args: Args, kwargs: Kwargs) -> list[int | None]:
    """Return the batch dimension of every tensor input, guessed from one example.

    The batch is the leading size of the first tensor that has dimensions; in a tensor whose
    leading size differs it is the first dimension of that size, if any.
    """
    tensors = [tensor for _, tensor in walk_inputs(args, kwargs)]
    batch = next((tensor.shape[0] for tensor in tensors if tensor.dim()), None)
    return [_position(tensor.shape, batch) for tensor in tensors]


def compared_batch_dimensions(
    one: tuple[Args, Kwargs], other: tuple[Args, Kwargs]
) -> list[int | None] | None:
    """Return the batch dimensions seen by comparing inputs at two batch sizes.

    None if the two differ in anything but one dimension of each tensor.
    """
    first = [tensor.shape for _, tensor in walk_inputs(*one)]
    second = [tensor.shape for _, tensor in walk_inputs(*other)]
    if len(first) != len(second):
        return None
    found: list[int | None] = []
    for a, b in zip(first, second, strict=True):
        if len(a) != len(b):
            return None
        changed = [dim for dim in range(len(a)) if a[dim] != b[dim]]
        found.append(changed[0] if changed and a[changed[0]] + 1 == b[changed[0]] else None)
    return found if any(dim is not None for dim in found) else None


def resize_batch(
    args: Args, kwargs: Kwargs, batch_dims: list[int | None], batch_size: int
) -> tuple[Args, Kwargs]:
    """Return the inputs with ``batch_size`` rows: rows are repeated in order, or cut off."""
    dims = iter(batch_dims)

    def change(_: Path, tensor: torch.Tensor) -> torch.Tensor:
        dim = next(dims)
        if dim is None or tensor.shape[dim] == batch_size:
            return tensor
        if tensor.shape[dim] == 0:
            raise UsageError("an example input has no rows", hint="give at least one row")
        rows = torch.arange(batch_size, device=tensor.device) % tensor.shape[dim]
        return tensor.index_select(dim, rows)

    return map_tensors(args, change), map_tensors(kwargs, change)


def free_sizes(
    args: Args, kwargs: Kwargs, batch_dims: list[int | None]
) -> dict[tuple[int, int], str]:
    """Return the names of the sizes that may change: the batch, and lengths of sequences.

    The second dimension of a two-dimensional integer input is a length; equal sizes in other
    integer or boolean inputs, and in the second dimension of others, are the same length.
    """
    tensors = [tensor for _, tensor in walk_inputs(args, kwargs)]
    symbols = {
        (index, dim): "batch"
        for index, (tensor, dim) in enumerate(zip(tensors, batch_dims, strict=True))
        if dim is not None and tensor.shape[dim] > 0
    }
    lengths: dict[int, str] = {}
    for tensor, batch in zip(tensors, batch_dims, strict=True):
        if tensor.dim() == 2 and batch is not None and _is_integer(tensor):
            length = tensor.shape[1 - batch]
            if length > 1 and length not in lengths:
                lengths[length] = _length_name(len(lengths))
    for index, (tensor, batch) in enumerate(zip(tensors, batch_dims, strict=True)):
        indexed = _is_integer(tensor) or tensor.dtype == torch.bool
        for dim, size in enumerate(tensor.shape):
            if dim == batch or size not in lengths:
                continue
            if indexed or (tensor.dim() > 2 and dim == 1) or (dim >= 2 and tensor.dim() == 4):
                symbols[index, dim] = lengths[size]
    return symbols


def apply_overrides(
    overrides: tuple[str, ...], args: Args, kwargs: Kwargs, parameters: list[str]
) -> tuple[Args, Kwargs]:
    """Return the inputs with those named in ``NAME=2x128:int64`` replaced or added.

    Parameters
    ----------
    parameters
        Names of the forward's parameters, in order.
    """
    positional, keywords = list(args), dict(kwargs)
    for text in overrides:
        match = _OVERRIDE.fullmatch(text.replace(" ", ""))
        if match is None:
            raise UsageError(
                f"--input {text!r} is not understood", hint="write NAME=2x128:int64 or NAME=:int64"
            )
        name = match["name"]
        if name not in parameters:
            raise UsageError(
                f"--input names {name!r}, which forward() does not take",
                hint=f"it takes: {', '.join(parameters)}",
            )
        index = parameters.index(name)
        old = positional[index] if index < len(positional) else keywords.get(name)
        tensor = _filled(text, match["shape"], match["dtype"], old)
        if index < len(positional):
            positional[index] = tensor
        else:
            keywords[name] = tensor
    return tuple(positional), keywords


def _filled(text: str, shape: str | None, dtype_name: str | None, old: Any) -> torch.Tensor:
    try:
        return _made(text, shape, dtype_name, old)
    except (RuntimeError, TypeError) as error:
        # More than memory, or than an index, can hold.
        said = " ".join(str(error).split())
        raise UsageError(f"--input {text!r} cannot be made", cause=said[:200]) from error


def _made(text: str, shape: str | None, dtype_name: str | None, old: Any) -> torch.Tensor:
    known = old if isinstance(old, torch.Tensor) else None
    dtype = getattr(torch, dtype_name, None) if dtype_name else None
    if dtype_name and not isinstance(dtype, torch.dtype):
        raise UsageError(f"--input {text!r}: torch has no dtype {dtype_name!r}")
    dtype = dtype or (known.dtype if known is not None else torch.float32)
    if shape:
        sizes = [int(size) for size in shape.split("x")]
    elif known is not None:
        sizes = list(known.shape)
    else:
        sizes = []
    if known is not None and known.dtype == dtype and known.dim() == len(sizes):
        return _tiled(known, sizes)
    if dtype.is_floating_point or dtype.is_complex:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(sizes, generator=generator, dtype=torch.float32).to(dtype)
    return torch.ones(sizes, dtype=dtype)


def _tiled(tensor: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Return ``tensor`` cut or repeated to ``sizes``, so that indices stay in their range."""
    for dim, size in enumerate(sizes):
        if tensor.shape[dim] != size and tensor.shape[dim] > 0:
            rows = torch.arange(size, device=tensor.device) % tensor.shape[dim]
            tensor = tensor.index_select(dim, rows)
    return tensor


def _position(shape: torch.Size, batch: int | None) -> int | None:
    return next((dim for dim, size in enumerate(shape) if size == batch), None)


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _length_name(index: int) -> str:
    return ("seq", "tgt")[index] if index < 2 else f"seq_{index + 1}"
