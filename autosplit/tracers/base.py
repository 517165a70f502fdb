"""The trace: the only type that holds live torch objects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import fx, nn

from autosplit.modelspec import LoadedModel
from autosplit.program import CallInterface, Program
from autosplit.registry import Registry


@dataclass
class Trace:
    """A model, the graph of what its forward does, and the same graph as plain data.

    Parameters
    ----------
    model
        The model that was traced, untouched.
    args, kwargs
        Example inputs (real tensors, or meta tensors for a model on meta).
    graph
        Recorded operations with live call targets. Node names equal those of ``program``;
        ``node.meta["value"]`` holds the fake result.
    program
        The same as plain data.
    constants
        Tensors captured by the forward, by their name in the program (``_constant_0``).
    interfaces
        What the module calls of the program took and returned, by their place in
        ``program.calls``; None for one that passes more than tensors and plain values.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    graph: fx.Graph
    program: Program
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    interfaces: dict[int, CallInterface | None] = field(default_factory=dict)


Tracer: TypeAlias = Callable[[LoadedModel], Trace]
"""Records ``loaded.model(*loaded.args, **loaded.kwargs)``.

Raises ``TraceError``, with ``file:line`` where known, if the forward cannot be recorded.
"""

TRACERS: Registry[Tracer] = Registry("tracer")
