"""How each module was called: what it took and what it returned.

A program has the operations inside a module; a stage that calls the module as it is needs these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from autosplit.errors import TraceError
from autosplit.program import Arg, CallInterface
from autosplit.tracers.effects import ambient_state
from autosplit.tracers.recorder import Recorder
from autosplit.tracers.recording import ModuleCall, Recording

_NEVER_SEEN = object()
"""A tensor that no operation has used yet, such as a parameter that is passed on."""


def noted(
    recorder: Recorder, module: nn.Module, args: Any, kwargs: Any, run: Callable[[], Any]
) -> Any:
    """Return ``run()``, and note what this call of ``module`` takes and returns."""
    if recorder.quiet or recorder.fake.fqn_of(module) is None:
        return run()
    found = ModuleCall(_nodes(recorder, args), _nodes(recorder, kwargs), ambient_state())
    recorder.recording.module_calls.append(found)
    out = run()
    found.result = _nodes(recorder, out)
    return out


def _nodes(recorder: Recorder, value: Any) -> Any:
    """Return plain structures with their tensors replaced; anything else stays as it is."""
    if isinstance(value, torch.Tensor):
        return recorder.known(value) or _NEVER_SEEN
    if type(value) in (tuple, list):
        return type(value)(_nodes(recorder, item) for item in value)
    if type(value) is dict:
        return {key: _nodes(recorder, item) for key, item in value.items()}
    return value


def interfaces(
    recording: Recording, argument: Callable[[Any], Arg]
) -> dict[int, CallInterface | None]:
    """Return what each module call took and returned, by its place among all calls.

    Parameters
    ----------
    argument
        Turns a value into plain data, or raises ``TraceError``: such a call is None.
    """
    places = [at for at, call in enumerate(recording.calls) if call.kind == "module"]
    calls = zip(places, recording.module_calls, strict=True)
    return {at: _plain(call, argument) for at, call in calls}


def _plain(call: ModuleCall, argument: Callable[[Any], Arg]) -> CallInterface | None:
    try:
        return CallInterface(
            tuple(argument(value) for value in call.args),
            tuple((name, argument(value)) for name, value in call.kwargs.items()),
            argument(call.result),
            call.ambient,
        )
    except TraceError:
        return None
