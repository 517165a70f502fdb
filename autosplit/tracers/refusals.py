"""Refusals that no other tracer could lift."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from autosplit.errors import TraceError
from autosplit.tracers.frames import place

_GRADIENTS = (torch.autograd.grad, torch.autograd.backward, torch.Tensor.backward)
_FREEZING = (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__)  # type: ignore[attr-defined]


class ModelError(TraceError):
    """A model that must be changed before it can be split: no fallback is tried."""


def refuse_call(func: Any, args: tuple[Any, ...], name_of: Callable[[Any], str | None]) -> None:
    """Refuse calls that work on the graph of gradients itself, which a cut takes apart.

    Parameters
    ----------
    name_of
        Gives the name of a parameter or buffer, None for any other tensor.

    Raises
    ------
    ModelError
        Naming the line.
    """
    if func in _GRADIENTS:
        raise ModelError(
            "the forward takes gradients itself",
            cause=place(),
            hint="a stage sees only a part of the graph that they go through; keep that part out "
            "of the model, for example in the loss",
        )
    if func in _FREEZING and (name := name_of(args[0])) is not None:
        raise ModelError(
            f"the forward changes whether {name} is trained",
            cause=place(),
            hint="set requires_grad before the forward; inside it, use detach() or torch.no_grad()",
        )
