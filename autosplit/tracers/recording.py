"""What a tracer has seen so far: the graph, the calls and the captured constants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import fx, nn

from autosplit.errors import TraceError
from autosplit.program import Ambient
from autosplit.tracers.frames import place
from autosplit.tracers.refusals import ModelError


@dataclass
class CallRecord:
    """A call of a module or Python function; see ``program.Call``."""

    kind: Literal["module", "function"]
    name: str
    fqn: str | None
    parent: int | None
    arg_names: tuple[str, ...] = ()
    loop_variable: str | None = None
    module: nn.Module | None = None


@dataclass
class ModuleCall:
    """Arguments and result of a module call, tensors replaced by their nodes."""

    args: Any
    kwargs: Any
    ambient: Ambient
    result: Any = None


@dataclass
class Recording:
    """The state of one trace.

    Parameters
    ----------
    graph
        Operations with their live targets.
    calls
        Calls in the order in which they began; entry 0 is the root.
    module_calls
        What the module calls among them took and returned, in the same order.
    constants
        Captured tensors by name.
    output
        What the forward returned, fake tensors in it.
    """

    graph: fx.Graph = field(default_factory=fx.Graph)
    calls: list[CallRecord] = field(default_factory=list)
    module_calls: list[ModuleCall] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    output: Any = None

    def add_call(self, call: CallRecord) -> int:
        """Append a call and return its index."""
        self.calls.append(call)
        return len(self.calls) - 1

    def capture(self, value: torch.Tensor) -> str:
        """Keep a tensor that is no part of the model, and return its name."""
        if not isinstance(value, torch.Tensor):
            raise ModelError(
                f"the forward uses a {type(value).__name__} of its own",
                hint="a stage cannot hold it; use tensors, and torch's default generator",
            )
        if isinstance(value, nn.Parameter) or value.requires_grad:
            raise ModelError(
                "the forward uses a trainable tensor that is not part of the model",
                cause=place(),
                hint="assign it as nn.Parameter in __init__ (lists: nn.ParameterList)",
            )
        if torch._C._functorch.is_functorch_wrapped_tensor(value):
            raise TraceError("the forward uses torch.vmap or torch.func", cause=place())
        name = f"_constant_{len(self.constants)}"
        self.constants[name] = value
        return name


def plain_number(value: Any) -> Any:
    """Return a numpy scalar as the Python number it is."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and value.ndim == 0:
        return value.item()
    return value
