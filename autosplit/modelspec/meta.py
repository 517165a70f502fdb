"""Models on meta: built with shapes but without memory for their weights."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

_STATE = (nn.Parameter, nn.Buffer)
_TABLES = ("_parameters", "_buffers", "_modules")
_MEMORY_TABLE = Path("/proc/meminfo")


@contextlib.contextmanager
def building(on_meta: bool) -> Iterator[None]:
    """Make new tensors on meta, or as usual."""
    with torch.device("meta") if on_meta else contextlib.nullcontext():
        yield


def is_on_meta(model: nn.Module) -> bool:
    """Tell whether a model has state without memory."""
    return any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))


def step_bytes(model: nn.Module) -> int:
    """Return the bytes of all state and, in training, of the gradients."""
    parameters = sum(tensor.nbytes for tensor in model.parameters())
    gradients = sum(tensor.nbytes for tensor in model.parameters() if tensor.requires_grad)
    buffers = sum(tensor.nbytes for tensor in model.buffers())
    return parameters + buffers + (gradients if model.training else 0)


def free_bytes() -> int | None:
    """Return the bytes that this machine can still give; None where it does not say."""
    try:
        text = _MEMORY_TABLE.read_text(encoding="utf-8")
    except OSError:
        return None
    found = re.search(r"^MemAvailable:\s+(\d+) kB$", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def give_constants_memory(model: nn.Module) -> None:
    """Replace tensors on meta that are plain attributes by ones with memory, of any value.

    A trace takes them for constants, and mixes them with state of another device.
    """
    made: dict[int, torch.Tensor] = {}

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta and not isinstance(value, _STATE):
            return made.setdefault(id(value), torch.empty_like(value, device="cpu"))
        if type(value) in (list, tuple):
            return type(value)(map(replaced, value))
        if type(value) is dict:
            return {key: replaced(item) for key, item in value.items()}
        return value

    for module in model.modules():
        attributes = vars(module)
        for name in [name for name in attributes if name not in _TABLES]:
            attributes[name] = replaced(attributes[name])


@contextlib.contextmanager
def without_parameters() -> Iterator[None]:
    """Give up the memory of each parameter as a module takes it; buffers keep their values.

    Unlike a model that is built on meta, this one knows its masks and tables.
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, param: nn.Parameter | None) -> None:
        register(module, name, param)
        if param is not None and not param.is_meta and not nn.parameter.is_lazy(param):
            empty = nn.Parameter(torch.empty_like(param, device="meta"), param.requires_grad)
            vars(empty).update(vars(param))
            # The same object stays the parameter, so that tied modules stay tied.
            torch.utils.swap_tensors(param, empty)  # type: ignore[no-untyped-call]

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
