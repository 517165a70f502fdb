"""Nested Python structures of tensors: walk them, rebuild them, describe them as a ``Tree``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch

from autosplit.errors import TraceError
from autosplit.program import Tree

Path = tuple[str | int, ...]
Kind = Literal["tuple", "list", "dict", "namedtuple", "object"]

CONSTANTS = (bool, int, float, str, type(None))


@dataclasses.dataclass(frozen=True)
class _Parts:
    kind: Kind
    keys: tuple[str | int, ...]
    items: tuple[Any, ...]
    rebuild: Callable[[list[Any]], Any]


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield ``(path, tensor)`` for every tensor in ``value``, left to right."""
    if isinstance(value, torch.Tensor):
        yield path, value
        return
    parts = _parts(value)
    if parts is not None:
        for key, item in zip(parts.keys, parts.items, strict=True):
            yield from walk(item, (*path, key))


def walk_inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[Path, torch.Tensor]]:
    """Yield the tensors of a call: the positional arguments first, then the keywords."""
    yield from walk(args, ("args",))
    yield from walk(kwargs, ("kwargs",))


def map_tensors(value: Any, change: Callable[[Path, torch.Tensor], Any], path: Path = ()) -> Any:
    """Return ``value`` with every tensor replaced by ``change(path, tensor)``."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    parts = _parts(value)
    if parts is None:
        return value
    pairs = zip(parts.keys, parts.items, strict=True)
    return parts.rebuild([map_tensors(item, change, (*path, key)) for key, item in pairs])


def describe(
    value: Any, name_of: Callable[[torch.Tensor], str], what: str, path: Path = ()
) -> Tree:
    """Return the structure of ``value`` with tensors replaced by their names.

    Parameters
    ----------
    name_of
        Name of a tensor.
    what
        What is described, for messages ("input", "output").

    Raises
    ------
    TraceError
        If something in it is neither a tensor, a constant nor a known container.
    """
    if isinstance(value, torch.Tensor):
        return Tree("value", name_of(value))
    if isinstance(value, CONSTANTS):
        return Tree("constant", value)
    parts = _parts(value)
    if parts is None:
        raise _unknown(value, what, path)
    items = tuple(
        describe(item, name_of, what, (*path, key))
        for key, item in zip(parts.keys, parts.items, strict=True)
    )
    named = parts.kind in ("namedtuple", "object")
    cls = type(value)
    return Tree(
        parts.kind,
        type_name=f"{cls.__module__}:{cls.__qualname__}" if named else None,
        keys=parts.keys if parts.kind not in ("tuple", "list") else (),
        items=items,
    )


def dotted(path: Path) -> str:
    """Return a path as text: ``kwargs.mask.0``."""
    return ".".join(map(str, path))


def _parts(value: Any) -> _Parts | None:
    cls = type(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _Parts("namedtuple", tuple(value._fields), tuple(value), lambda items: cls(*items))
    if isinstance(value, tuple):
        return _Parts("tuple", tuple(range(len(value))), tuple(value), tuple)
    if isinstance(value, list):
        return _Parts("list", tuple(range(len(value))), tuple(value), list)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _object(value, _fields(value))
    if isinstance(value, dict):
        keys = tuple(value)
        if cls is dict or not all(isinstance(key, str) for key in keys):
            return _Parts(
                "dict",
                keys,
                tuple(value.values()),
                lambda items: dict(zip(keys, items, strict=True)),
            )
        return _object(value, dict(value))
    return None


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields a dataclass is rebuilt from; unset ones of a mapping are left out."""
    if isinstance(value, dict):
        return dict(value)
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init
    }


def _object(value: Any, fields: dict[str, Any]) -> _Parts:
    cls, keys = type(value), tuple(fields)
    return _Parts(
        "object",
        keys,
        tuple(fields.values()),
        lambda items: cls(**dict(zip(keys, items, strict=True))),
    )


def _unknown(value: Any, what: str, path: Path) -> TraceError:
    kind = type(value).__name__
    hint = "let the model take and return tensors, None, numbers, tuples, lists and dicts"
    if "Cache" in kind:
        hint = "switch the cache off (use_cache=False): a pipeline stage cannot return it"
    elif isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        hint = "return the tensor and let the caller read its size"
    return TraceError(f"the {what} {dotted(path)} is a {kind}".replace("  ", " "), hint=hint)
