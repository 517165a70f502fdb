"""Layers compiled by ``torch.compile`` before they are timed."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from autosplit.errors import AutosplitError, UsageError
from autosplit.profilers.base import ProfileOptions
from autosplit.profilers.passes import Compute

Finish: TypeAlias = Callable[[Compute], Compute]
"""What is done to a set of operations before it runs."""

_COMPILERS = ("g++", "clang++", "c++")


@dataclass(frozen=True)
class _Compiled:
    """A set of operations as one compiled function."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    clone: tuple[bool, ...]
    function: Callable[..., tuple[Any, ...]]

    def __call__(self, *tensors: Tensor) -> tuple[Any, ...]:
        try:
            return self.function(*tensors)
        except torch._dynamo.exc.TorchDynamoException as error:
            raise AutosplitError(
                f"torch cannot compile the layer that gives {', '.join(self.outputs)}",
                cause=str(error).strip().split("\n")[0],
                hint="profile without --compile",
            ) from error


def compiler(options: ProfileOptions, device: torch.device) -> Finish:
    """Return what compiles sets of operations, or leaves them as they are.

    Raises
    ------
    UsageError
        If compiled code was asked for and cannot be made here.
    """
    if not options.compile:
        return lambda compute: compute
    refuse_without_compiler(device)
    return lambda compute: _Compiled(
        compute.inputs,
        compute.outputs,
        compute.clone,
        # Sizes are those of the example: each size of a sweep has code of its own, as a run has.
        torch.compile(compute.function, dynamic=False),
    )


def refuse_without_compiler(device: torch.device) -> None:
    """Refuse ``--compile`` where torch finds nothing that makes code for a device.

    Raises
    ------
    UsageError
        Naming what is missing.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            raise UsageError(
                "--compile cannot make code for a GPU here",
                cause="the package triton is not installed",
                hint="install it, or profile without --compile",
            )
        return
    given = os.environ.get("CXX")
    if not any(map(shutil.which, [given] if given else _COMPILERS)):
        raise UsageError(
            "--compile cannot make code for the CPU here",
            cause=f"there is no C++ compiler {given}" if given else "there is no C++ compiler",
            hint="install g++ or clang++, or name one in CXX; or profile without --compile",
        )
