"""Causal masks built from index arithmetic, written as one lower triangle.

Library code builds the mask of a decoder from a dozen operations on ``arange``. They depend on
sizes alone, so they are evaluated here at several sizes; if the result is the lower triangle
each time, that is what is written. The rewrite is listed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autosplit.codegen.scopes import Rewrite, StageGraph
from autosplit.codegen.simplify import drop_dead, substitute
from autosplit.program import (
    Arg,
    Dim,
    EllipsisArg,
    Node,
    Ref,
    Sequence,
    Size,
    Slice,
    TensorSpec,
    Token,
)
from autosplit.sizes import evaluate

_SIZES = ((2, 5), (3, 8), (1, 1), (4, 33))
"""Values tried for the first symbol and for all others."""


class _UnknownError(Exception):
    """An operation that is not evaluated here."""


def recognise_masks(graph: StageGraph) -> None:
    """Replace causal masks of a stage by a lower triangle."""
    free = _free(graph)
    for name in [name for name, alone in free.items() if alone]:
        if name in graph.nodes and _is_candidate(graph, name, free) and _is_causal(graph, name):
            _replace(graph, name, free)
            why = "a lower triangle at every size tried, and a function of sizes alone"
            graph.rewrites.append(Rewrite("causal mask", name, why))
    drop_dead(graph)


def _free(graph: StageGraph) -> dict[str, bool]:
    """Say of each operation whether it depends on sizes alone."""
    found: dict[str, bool] = {}
    for name, node in graph.nodes.items():
        plain = node.op == "function" and not graph.effect(name)
        found[name] = plain and all(found.get(value, False) for value in node.inputs())
    return found


def _is_candidate(graph: StageGraph, name: str, free: dict[str, bool]) -> bool:
    spec = graph.tensor(name)
    if spec is None or spec.dtype != "bool" or len(spec.shape) < 2:
        return False
    if spec.shape[-1] != spec.shape[-2] or spec.shape[-1] == 1 or not graph.nodes[name].inputs():
        return False
    return any(
        not free.get(reader, False) or _inverts(graph, reader)
        for reader in graph.readers.get(name, ())
    )


def _inverts(graph: StageGraph, name: str) -> bool:
    return graph.nodes[name].target.rpartition(".")[2].strip("_") in ("invert", "bitwise_not")


def _is_causal(graph: StageGraph, name: str) -> bool:
    symbols = [symbol.name for symbol in graph.program.symbols]
    for first, other in _SIZES:
        values = dict.fromkeys(symbols, other)
        if symbols:
            values[symbols[0]] = first
        try:
            found = _Evaluator(graph, values).value(name)
        except (_UnknownError, IndexError, TypeError, ValueError):
            return False
        if not isinstance(found, np.ndarray) or found.dtype != np.bool_:
            return False
        triangle = np.tri(found.shape[-1], dtype=np.bool_)
        if not np.array_equal(found, np.broadcast_to(triangle, found.shape)):
            return False
    return True


def _replace(graph: StageGraph, name: str, free: dict[str, bool]) -> None:
    old = graph.nodes[name]
    spec = old.value
    assert isinstance(spec, TensorSpec)
    size = _size(spec.shape[-1])
    square = replace(spec, shape=spec.shape[-2:], stride=(), storage=-1)
    calls = _outermost(graph, old, free)
    fresh = replace(old, args=(), kwargs=(), calls=calls, source_names=(), value=square)
    dtype = ("dtype", Token("dtype", "bool"))
    device = ("device", Token("device", "running"))
    full = replace(
        fresh, name=f"{name}_full", target="torch.ones", args=(size, size), kwargs=(dtype, device)
    )
    new = [
        full,
        replace(fresh, name=f"{name}_lower", target="torch.Tensor.tril", args=(Ref(full.name),)),
    ]
    if len(spec.shape) > 2:
        shape = tuple(map(_size, spec.shape))
        args = (Ref(new[-1].name), *shape)
        new.append(
            replace(fresh, name=f"{name}_mask", target="torch.Tensor.expand", args=args, value=spec)
        )
    _insert(graph, name, new)
    substitute(graph, name, new[-1].name)
    names = graph.names.setdefault(calls[-1], {}).setdefault(new[-1].name, [])
    inner = [n for call in old.calls[::-1] for n in graph.local_names(call, new[-1].name)]
    names += [each for each in inner if each not in names]


def _insert(graph: StageGraph, before: str, new: list[Node]) -> None:
    nodes = list(graph.nodes.items())
    at = [name for name, _ in nodes].index(before)
    nodes[at:at] = [(node.name, node) for node in new]
    graph.nodes.clear()
    graph.nodes.update(nodes)
    for node in new:
        for value in node.inputs():
            graph.readers.setdefault(value, []).append(node.name)


def _outermost(graph: StageGraph, node: Node, free: dict[str, bool]) -> tuple[int, ...]:
    """Return the calls of a mask without the functions that do nothing but make masks."""
    calls = list(node.calls)
    while len(calls) > 1 and graph.program.calls[calls[-1]].kind == "function":
        inside = [name for name, each in graph.nodes.items() if calls[-1] in each.calls]
        if not all(free.get(name, False) for name in inside):
            break
        calls.pop()
    return tuple(calls)


def _size(dim: Dim) -> Arg:
    return dim if isinstance(dim, int) else Size(dim)


# ---------------------------------------------------------------- evaluation

_INFIX: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "le": operator.le,
    "lt": operator.lt,
    "ge": operator.ge,
    "gt": operator.gt,
    "eq": operator.eq,
    "ne": operator.ne,
    "and": operator.and_,
    "or": operator.or_,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
_SAME = {"to", "contiguous", "type", "bool", "int", "long", "float", "clone", "detach"}


@dataclass
class _Evaluator:
    """Evaluates operations with numpy for given sizes."""

    graph: StageGraph
    sizes: dict[str, int]
    known: dict[str, Any] = field(default_factory=dict)

    def value(self, name: str) -> Any:
        """Return the value of an operation that depends on sizes alone."""
        if name not in self.known:
            node = self.graph.nodes[name]
            args = [self._arg(arg) for arg in node.args]
            kwargs = {key: self._arg(arg) for key, arg in node.kwargs}
            found = self._call(node.target.rpartition(".")[2].strip("_"), args, kwargs)
            if isinstance(node.value, TensorSpec):
                found = np.asarray(found).astype(node.value.dtype)
            self.known[name] = found
        return self.known[name]

    def _arg(self, arg: Arg) -> Any:
        match arg:
            case Ref(name):
                return self.value(name)
            case Size(expression):
                return evaluate(expression, self.sizes)
            case Sequence(_, items):
                return tuple(self._arg(item) for item in items)
            case Slice(start, stop, step):
                return slice(self._arg(start), self._arg(stop), self._arg(step))
            case EllipsisArg():
                return ...
            case Token() | None | bool() | int() | float():
                return None if isinstance(arg, Token) else arg
        raise _UnknownError(repr(arg))

    def _call(self, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        kwargs = {key: value for key, value in kwargs.items() if key not in ("dtype", "device")}
        if name in _SAME:
            return args[0]
        if name in _INFIX and len(args) == 2 and not kwargs:
            return _INFIX[name](*args)
        method = getattr(self, f"_{name}", None)
        if method is None:
            raise _UnknownError(name)
        return method(*args, **kwargs)

    def _arange(self, *bounds: int) -> Any:
        return np.arange(*bounds)

    def _ones(self, *shape: Any) -> Any:
        return np.ones(_shape(shape))

    def _zeros(self, *shape: Any) -> Any:
        return np.zeros(_shape(shape))

    def _new_ones(self, _: Any, *shape: Any) -> Any:
        return np.ones(_shape(shape))

    def _full(self, shape: Any, value: Any) -> Any:
        return np.full(shape, value)

    def _getitem(self, value: Any, index: Any) -> Any:
        return value[index]

    def _invert(self, value: Any) -> Any:
        return ~value

    def _unsqueeze(self, value: Any, dim: int) -> Any:
        return np.expand_dims(value, dim)

    def _view(self, value: Any, *shape: Any) -> Any:
        return value.reshape(_shape(shape))

    _reshape = _view

    def _expand(self, value: Any, *shape: Any) -> Any:
        wanted = _shape(shape)
        kept = (1,) * (len(wanted) - value.ndim) + value.shape
        sizes = [old if new == -1 else new for old, new in zip(kept, wanted, strict=True)]
        return np.broadcast_to(value, sizes)

    def _tril(self, value: Any, diagonal: int = 0) -> Any:
        return np.tril(value, diagonal)

    def _triu(self, value: Any, diagonal: int = 0) -> Any:
        return np.triu(value, diagonal)

    def _cumsum(self, value: Any, dim: int) -> Any:
        return np.cumsum(value, axis=dim)

    def _diff(self, value: Any, n: int = 1, dim: int = -1, **ends: Any) -> Any:
        return np.diff(value, n=n, axis=dim, **ends)


def _shape(shape: tuple[Any, ...]) -> tuple[int, ...]:
    return tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], tuple) else shape
