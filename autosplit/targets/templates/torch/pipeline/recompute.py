"""Activations of a whole stage computed again in backward, instead of kept."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from .routing import Route


def planned(path: Path) -> frozenset[int]:
    """Return the stages for which the plan recomputes layers."""
    stages = json.loads(path.read_text(encoding="utf-8"))["stages"]
    return frozenset(index for index, stage in enumerate(stages) if stage["recompute"])


def call_again(
    stage: nn.Module,
    route: Route,
    values: dict[str, Tensor],
    inside: AbstractContextManager[object],
) -> dict[str, Tensor]:
    """Call a stage like ``Route.call``, keeping what it takes alone for backward.

    The context ``inside`` is entered for each of the two calls.

    Random numbers and autocast are the same the second time, and statistics of BatchNorm are
    updated once.
    """

    def run(*taken: Tensor) -> tuple[Tensor, ...]:
        with inside:
            return tuple(route.call(stage, dict(zip(route.take, taken, strict=True))).values())

    given = checkpoint(
        run,
        *(values[name] for name in route.take),
        use_reentrant=False,
        context_fn=partial(_contexts, stage),
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


def _contexts(
    stage: nn.Module,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _same_buffers(stage)


@contextmanager
def _same_buffers(stage: nn.Module) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in stage.buffers()]
    try:
        yield
    finally:
        for buffer, value in kept:
            # Through `data`: autograd must not take it for a change of what it has saved.
            buffer.data.copy_(value)
