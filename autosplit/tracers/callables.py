"""Public names of the callables that a trace meets."""

from __future__ import annotations

import types
from functools import cache
from typing import Any

import torch

_NAMESPACES = (
    "torch.nn.functional",
    "torch",
    "torch.special",
    "torch.linalg",
    "torch.fft",
)


def public_name(target: Any) -> str | None:
    """Return the dotted path by which code reaches ``target``; None if it has no public one.

    An attribute read is ``torch.Tensor.NAME.__get__``, an operator overload
    ``torch.ops.NAMESPACE.NAME.OVERLOAD``.
    """
    if isinstance(target, torch._ops.OpOverload):
        return f"torch.ops.{target}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{str(target).replace('::', '.')}"
    owner = getattr(target, "__self__", None)
    if isinstance(owner, (types.GetSetDescriptorType, property)):
        name = owner.fget.__name__ if isinstance(owner, property) and owner.fget else None
        return f"torch.Tensor.{name or owner.__name__}.{target.__name__}"  # type: ignore[union-attr]
    found = _public().get(_key(target))
    if found is not None:
        return found
    module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
    if module == "_operator":
        return f"operator.{name}"
    return None


def result_name(func: Any) -> str:
    """Return a name for the result of a call: ``__getitem__`` gives ``getitem``."""
    owner = getattr(func, "__self__", None)
    name = owner.__name__ if func.__name__ == "__get__" and owner is not None else func.__name__
    return str(name).strip("_") or "value"


def _key(target: Any) -> Any:
    try:
        hash(target)
    except TypeError:
        return id(target)
    return target


@cache
def _public() -> dict[Any, str]:
    """Return names by callable; where one object has several, the first namespace wins."""
    found: dict[Any, str] = {}
    for path in _NAMESPACES:
        space: Any = torch
        for part in path.split(".")[1:]:
            space = getattr(space, part)
        for name in sorted(vars(space)):
            value = getattr(space, name)
            if callable(value) and not isinstance(value, type) and not name.startswith("_"):
                found.setdefault(_key(value), f"{path}.{name}")
    for name in sorted(vars(torch)):
        if name.startswith("_") and callable(value := getattr(torch, name)):
            found.setdefault(_key(value), f"torch.{name}")
    # One object may be both ``abs`` and ``__abs__``: people write the former.
    for name in sorted(dir(torch.Tensor), key=lambda name: (name.startswith("_"), name)):
        value = getattr(torch.Tensor, name)
        if callable(value) and not isinstance(value, type):
            found.setdefault(_key(value), f"torch.Tensor.{name}")
    return found
