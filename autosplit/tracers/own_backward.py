"""Modules with a backward of their own: called as one operation, by their own code.

What a ``torch.autograd.Function`` does in its backward cannot be recorded. The module that calls
it can be called as it is, and so the stages take it out of the original model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import CheckpointFunction

from autosplit.errors import TraceError
from autosplit.program import ORIGINAL, Arg, Constructor
from autosplit.tracers.frames import place
from autosplit.tracers.recorder import Recorder


class OwnBackwardError(TraceError):
    """The forward reached a backward of its own, in ``module`` ("" for the model itself)."""

    module = ""


def custom_apply(recorder: Recorder) -> Any:
    """Return what stands for ``Function.apply`` while recording.

    A checkpointed region runs as plain operations: recomputation is a decision of the plan. Any
    other function is refused outside of modules that are called as one operation.
    """
    original = Function.__dict__["apply"]

    def apply(cls: type[Function], *args: Any, **kwargs: Any) -> Any:
        if cls is CheckpointFunction:
            run, _, *inputs = args
            return run(*inputs)
        if recorder.quiet:
            return original.__get__(None, cls)(*args, **kwargs)
        error = OwnBackwardError(
            f"the forward uses {cls.__name__}, a torch.autograd.Function",
            cause=place(),
            hint="its backward cannot be written into a stage; call it in a module of its own, "
            "which stages then run as it is, or use torch operations for it",
        )
        error.module = recorder.innermost() or ""
        raise error

    return classmethod(apply)


def as_one_operation(model: nn.Module, name: str) -> dict[str, Constructor]:
    """Return the constructors of a module and all others of its class; none if that fails.

    A tensor that is a plain attribute would be lost when the module is built without memory.
    """
    cls = type(model.get_submodule(name))
    same = {n: module for n, module in model.named_modules() if n and type(module) is cls}
    if name not in same or any(map(_has_loose_tensors, same.values())):
        return {}
    return {n: Constructor(ORIGINAL, (), tuple(_settings(module))) for n, module in same.items()}


def _has_loose_tensors(module: nn.Module) -> bool:
    values = (value for part in module.modules() for value in vars(part).values())
    return any(isinstance(value, torch.Tensor) for value in values)


def _settings(module: nn.Module) -> Iterator[tuple[str, Arg]]:
    """Yield what tells a module from others of its class with the same state."""
    for name, part in module.named_modules():
        for key, value in sorted(vars(part).items()):
            if type(value) in (bool, int, float, str):
                yield f"{name}.{key}" if name else key, value


def recorded_with_own(record: Callable[[dict[str, Constructor]], Any], model: nn.Module) -> Any:
    """Return ``record(constructors)`` with as few modules called as one operation as will do."""
    own: dict[str, Constructor] = {}
    while True:
        try:
            return record(own)
        except OwnBackwardError as error:
            found = as_one_operation(model, error.module) if error.module else {}
            if not found.keys() - own.keys():
                raise
            own |= found
