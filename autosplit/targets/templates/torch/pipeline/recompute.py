"""Activations computed again in backward, instead of kept: of modules, or of a whole stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .routing import Route

WHOLE = ("",)
"""The name of a stage among its modules: it is computed again as a whole."""


def compute_again(
    stage: nn.Module, names: Iterable[str], inside: AbstractContextManager[object]
) -> None:
    """Let backward compute modules of a stage again; what goes into them is kept.

    Random numbers and autocast are the same the second time, and statistics of BatchNorm are
    updated once. The context ``inside`` is entered the second time, as it is around the stage
    the first time.
    """
    modules = dict(stage.named_modules())
    for name in names:
        for module in _called(modules[name]) if name in modules else ():
            again = partial(_call_module, module, module.forward, inside)
            module.forward = again


def call_again(
    stage: nn.Module,
    route: Route,
    values: dict[str, Tensor],
    inside: AbstractContextManager[object],
) -> dict[str, Tensor]:
    """Call a stage like ``Route.call``, keeping what it takes alone for backward.

    ``inside`` is as in ``compute_again``.
    """

    def run(*taken: Tensor) -> tuple[Tensor, ...]:
        return tuple(route.call(stage, dict(zip(route.take, taken, strict=True))).values())

    taken = [values[name] for name in route.take]
    given = checkpoint(
        run, *taken, use_reentrant=False, context_fn=partial(_contexts, stage, inside)
    )
    return dict(zip(route.give, given, strict=True))


def written_buffers(stage: nn.Module, before: dict[str, int]) -> tuple[str, ...]:
    """Return the buffers written to since ``buffer_versions``, those of BatchNorm left out."""
    return tuple(
        name for name, version in buffer_versions(stage).items() if version != before[name]
    )


def buffer_versions(stage: nn.Module) -> dict[str, int]:
    """Return how often each buffer has been written to in place."""
    return {
        name: buffer._version
        for prefix, module in stage.named_modules()
        if not isinstance(module, _BatchNorm)
        for name, buffer in module.named_buffers(prefix, recurse=False)
    }


def is_within(name: str, modules: Iterable[str]) -> bool:
    """Return whether a parameter or buffer stands in one of the modules."""
    return any(not module or name.startswith(f"{module}.") for module in modules)


def _called(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the module; those inside where it only holds them."""
    if type(module).forward is not nn.Module.forward:
        yield module
        return
    for child in module.children():
        yield from _called(child)


def _call_module(
    module: nn.Module,
    forward: Callable[..., Any],
    inside: AbstractContextManager[object],
    *args: Any,
    **kwargs: Any,
) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    taken = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]

    def run(*_: Tensor) -> Any:
        # What torch gives back are other objects, and attention to itself is told by identity.
        return forward(*args, **kwargs)

    return checkpoint(
        run, *taken, use_reentrant=False, context_fn=partial(_contexts, module, inside)
    )


def _contexts(
    module: nn.Module, inside: AbstractContextManager[object]
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _second_time(module, inside)


@contextmanager
def _second_time(module: nn.Module, inside: AbstractContextManager[object]) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        with inside:
            yield
    finally:
        for buffer, value in kept:
            # Through `data`: autograd must not take it for a change of what it has saved.
            buffer.data.copy_(value)
