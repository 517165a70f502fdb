"""Sizes, tensors and the arguments of operations, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from autosplit.checks import require

Dim: TypeAlias = int | str
"""A size: a number, or a Python expression over symbol names (``"batch"``, ``"2*seq"``)."""

DTYPE_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a tensor value.

    Parameters
    ----------
    shape
        Sizes; a string is an expression over the program's symbols.
    dtype
        Name without ``torch.`` ("float32").
    stride
        Strides in elements, expressions as for ``shape``.
    storage
        Number of the memory behind the tensor: views of one another share it.
    requires_grad
        Whether autograd follows the value in training.
    """

    shape: tuple[Dim, ...]
    dtype: str
    stride: tuple[Dim, ...] = ()
    storage: int = -1
    requires_grad: bool = False

    def __post_init__(self) -> None:
        require(self, self.dtype in DTYPE_BYTES, f"unknown dtype {self.dtype!r}")


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that may differ from run to run.

    Parameters
    ----------
    name
        Python identifier ("batch", "seq").
    example
        Its value while tracing.
    sources
        ``(input name, dimension)`` pairs from which it can be read.
    """

    name: str
    example: int
    sources: tuple[tuple[str, int], ...]


# ---------------------------------------------------------------- arguments


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of another node."""

    name: str


@dataclass(frozen=True, slots=True)
class Size:
    """A number computed from sizes, as a Python expression over symbol names."""

    expression: str
    kind: Literal["int", "float", "bool"] = "int"


@dataclass(frozen=True, slots=True)
class Token:
    """A torch constant written by its public name.

    ``kind`` is "dtype", "layout", "memory_format" or "device"; a device's ``name`` is the one
    it had while tracing and code generation writes the running device in its place.
    """

    kind: Literal["dtype", "layout", "memory_format", "device"]
    name: str


@dataclass(frozen=True, slots=True)
class Slice:
    """``start:stop:step`` of a subscript."""

    start: Arg
    stop: Arg
    step: Arg


@dataclass(frozen=True, slots=True)
class Sequence:
    """A list or tuple argument."""

    kind: Literal["list", "tuple"]
    items: tuple[Arg, ...]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A dict argument with string keys."""

    items: tuple[tuple[str, Arg], ...]


@dataclass(frozen=True, slots=True)
class EllipsisArg:
    """``...`` in a subscript."""


@dataclass(frozen=True, slots=True)
class TrainingSwitch:
    """A constant that follows the module's mode: ``train if self.training else eval``.

    Dropout rates and flags that the model derives from ``self.training`` are recorded so.
    """

    train: int | float | bool | None
    eval: int | float | bool | None


Arg: TypeAlias = (
    Ref
    | Size
    | Token
    | Slice
    | Sequence
    | Mapping
    | EllipsisArg
    | TrainingSwitch
    | int
    | float
    | bool
    | str
    | None
)


def refs(arg: object) -> Iterator[str]:
    """Yield the node names an argument refers to, in order, repeats included."""
    if isinstance(arg, Ref):
        yield arg.name
    elif isinstance(arg, Slice):
        for part in (arg.start, arg.stop, arg.step):
            yield from refs(part)
    elif isinstance(arg, Sequence):
        for item in arg.items:
            yield from refs(item)
    elif isinstance(arg, Mapping):
        for _, item in arg.items:
            yield from refs(item)
    elif isinstance(arg, tuple):
        for item in arg:
            yield from refs(item)
