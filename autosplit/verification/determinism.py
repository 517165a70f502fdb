"""Random draws that depend on their shape alone, so that two runs can be compared in train mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_SEED = 0


class _Reseed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seed the generator anew before every operation that draws random numbers."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.manual_seed(_SEED)
        call: Callable[..., Any] = func
        return call(*args, **(kwargs or {}))


@contextmanager
def fixed_randomness() -> Iterator[None]:
    """Make every random operation draw the same numbers whenever it has the same shape.

    A pipeline may run independent operations in another order than the model, and each of its
    processes has a generator of its own. Under this mode dropout still zeroes elements at its
    rate, in both, and both zero the same ones. The generator is put back afterwards.
    """
    with torch.random.fork_rng(devices=[]), _Reseed():  # type: ignore[no-untyped-call]
        yield
