"""From a batch to micro-batches, each checked against the shapes the stages were made for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .errors import PipelineError
from .replicas import Replicas
from .routing import Routing, Value
from .tree import flatten, rebuild


@dataclass(frozen=True)
class Microbatch:
    """One micro-batch.

    Parameters
    ----------
    inputs
        Tensor inputs of the model by name.
    targets
        What the loss is called with after the output.
    rows
        Number of rows, by which its loss is weighted.
    """

    inputs: Mapping[str, Tensor]
    targets: tuple[Any, ...]
    rows: int

    @property
    def signature(self) -> tuple[Any, ...]:
        """Shapes and dtypes: equal for micro-batches that can share a schedule."""
        return tuple((name, tuple(t.shape), t.dtype) for name, t in self.inputs.items())


@dataclass(frozen=True)
class Share:
    """Which of ``count`` replicas takes its rows of a batch; by default there is one."""

    index: int = 0
    count: int = 1

    def span(self, rows: int) -> tuple[int, int]:
        """Return the first of its rows and their number; the first replicas take one more.

        With fewer rows than replicas some run a row that another one counts: all must run.
        """
        least, more = divmod(rows, self.count)
        number = least + (self.index < more)
        first = self.index * least + min(self.index, more)
        return first if number else self.index % rows, number


def whole_batch(routing: Routing, inputs: Any, targets: Sequence[Any] = ()) -> Microbatch:
    """Return a batch as one.

    Parameters
    ----------
    inputs
        What the model is called with: a tuple of arguments, a dict of keyword arguments, or a
        pair of both.
    targets
        Tensors with one row per row of the batch along dimension 0, or anything else, which
        every micro-batch sees whole.

    Raises
    ------
    PipelineError
        If the inputs are not of the structure and dtypes the stages were made for.
    """
    tensors = flatten(routing.input_tree, _arguments(routing, inputs))
    for name, tensor in tensors.items():
        _check_kind(name, tensor, routing.values[name])
    return Microbatch(tensors, tuple(targets), _rows(routing, tensors))


def split_batch(
    routing: Routing,
    inputs: Any,
    targets: Sequence[Any] = (),
    microbatches: int = 1,
    *,
    size: int | None = None,
) -> tuple[Microbatch, ...]:
    """Divide a batch into micro-batches: ``divide`` of ``whole_batch``."""
    return divide(routing, whole_batch(routing, inputs, targets), microbatches, size=size)


def divide(
    routing: Routing,
    batch: Microbatch,
    microbatches: int = 1,
    *,
    size: int | None = None,
    share: Share = Share(),
) -> tuple[Microbatch, ...]:
    """Divide a batch into micro-batches; the last may be smaller, none is lost.

    Parameters
    ----------
    microbatches
        How many micro-batches; a batch with fewer rows gives one per row.
    size
        Rows of a micro-batch, instead of ``microbatches``.
    share
        Takes the rows of one replica alone. Where it has none, there is a micro-batch all the
        same, of a row that counts nothing.

    Raises
    ------
    PipelineError
        If the inputs are not of the shapes the stages were made for.
    """
    first, rows = share.span(batch.rows)
    span = (first, max(rows, 1))
    size = size or -(-span[1] // microbatches)
    dims = {name: routing.values[name].batch_dim for name in batch.inputs}
    parts = {name: _divide(t, dims[name], span, size) for name, t in batch.inputs.items()}
    target_parts = [_divide_target(target, batch.rows, span, size) for target in batch.targets]
    found = []
    for number in range(-(-span[1] // size)):
        part = Microbatch(
            inputs={name: _pick(pieces, number) for name, pieces in parts.items()},
            targets=tuple(_pick(pieces, number) for pieces in target_parts),
            rows=min(size, rows - number * size),
        )
        _check_sizes(routing, part)
        found.append(part)
    return tuple(found)


def mean_loss(
    losses: Sequence[Tensor],
    microbatches: Sequence[Microbatch],
    replicas: Replicas = Replicas(),  # noqa: B008 (never changed)
) -> float:
    """Return the mean of the micro-batches' losses, weighted by rows as in training.

    The ranks with the last stage of all replicas call it.
    """
    rows = [part.rows for part in microbatches]
    pairs = zip(losses, rows, strict=True)
    weighted = sum(float(loss) * count for loss, count in pairs)
    total, count = replicas.totals(weighted, sum(rows))
    return total / count


def _arguments(routing: Routing, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, Mapping):
        # By name all inputs fit, those too that the model was traced with by position.
        by_name = set(inputs) == set(routing.inputs)
        return rebuild(routing.input_tree, inputs) if by_name else ((), dict(inputs))
    if (
        isinstance(inputs, tuple)
        and len(inputs) == 2
        and isinstance(inputs[0], tuple)
        and isinstance(inputs[1], dict)
    ):
        return inputs
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def _rows(routing: Routing, tensors: Mapping[str, Tensor]) -> int:
    found: dict[str, int] = {}
    for name, tensor in tensors.items():
        dim = routing.values[name].batch_dim
        if dim is not None:
            found[name] = tensor.shape[dim]
    if len(set(found.values())) > 1:
        counts = ", ".join(f"{name} has {rows}" for name, rows in found.items())
        raise PipelineError(f"inputs differ in their number of rows: {counts}")
    rows = next(iter(found.values()), 1)
    if rows == 0:
        raise PipelineError("the batch has no rows")
    return rows


def _divide(
    tensor: Tensor, dim: int | None, span: tuple[int, int], size: int
) -> Tensor | tuple[Tensor, ...]:
    return tensor if dim is None else _slices(tensor, dim, span, size)


def _divide_target(target: Any, rows: int, span: tuple[int, int], size: int) -> Any:
    if not isinstance(target, Tensor) or target.dim() == 0:
        return target
    if target.shape[0] != rows:
        raise PipelineError(
            f"a target of shape {tuple(target.shape)} has {target.shape[0]} rows and the batch "
            f"{rows}: move the rows of the target to dimension 0"
        )
    return _slices(target, 0, span, size)


def _slices(tensor: Tensor, dim: int, span: tuple[int, int], size: int) -> tuple[Tensor, ...]:
    first, length = span
    return tuple(
        tensor.narrow(dim, first + i, min(size, length - i)) for i in range(0, length, size)
    )


def _pick(pieces: Any, number: int) -> Any:
    return pieces[number] if isinstance(pieces, tuple) else pieces


def _check_kind(name: str, tensor: Tensor, value: Value) -> None:
    if tensor.dtype != value.dtype:
        raise PipelineError(f"input {name!r} is {tensor.dtype}, not {value.dtype}")
    if tensor.dim() != len(value.shape):
        raise PipelineError(
            f"input {name!r} has shape {tuple(tensor.shape)}; it needs "
            f"{len(value.shape)} dimensions"
        )


def _check_sizes(routing: Routing, microbatch: Microbatch) -> None:
    """Refuse sizes with which the stages would fail later, or compute something else."""
    sizes: dict[str, int] = {}
    for name, tensor in microbatch.inputs.items():
        value = routing.values[name]
        for dim, (actual, expected) in enumerate(zip(tensor.shape, value.shape, strict=True)):
            if isinstance(expected, int):
                wanted, why = expected, _why_fixed(value, dim)
            elif expected.isidentifier():
                wanted, why = sizes.setdefault(expected, actual), f"as another input ({expected})"
            else:
                continue
            if actual != wanted:
                raise PipelineError(
                    f"input {name!r} has {actual} in dimension {dim} of a micro-batch; the stages "
                    f"need {wanted}, {why}"
                )


def _why_fixed(value: Value, dim: int) -> str:
    if dim == value.batch_dim:
        return "the one number of rows for which they were traced"
    return "the size for which they were traced: export the model again for another"
