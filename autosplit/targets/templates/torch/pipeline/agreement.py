"""Every rank draws its own copy of a batch: the copies must be the same."""

from __future__ import annotations

import random
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .batches import Microbatch
from .errors import PipelineError

T = TypeVar("T")

_CHECKED_BYTES = 65536
"""Bytes of each tensor that are compared; ranks that drift apart differ everywhere."""


def draw(make: Callable[[], Iterable[T]], seed: int, *, again: bool = True) -> Iterator[T]:
    """Yield batches, drawn from random numbers of their own: of torch, Python and NumPy.

    The stages use up random numbers differently (dropout), and data drawn from the same stream
    would soon differ from rank to rank. With ``again`` a source that ends is started anew.

    Raises
    ------
    PipelineError
        If ``make`` yields nothing.
    """
    numbers = _Numbers(seed)
    with numbers:
        batches = iter(make())
    fresh = True
    while True:
        with numbers:
            batch = next(batches, None)
        if batch is not None:
            fresh = False
            yield batch
        elif fresh:
            raise PipelineError("data.py yields no batch")
        elif not again:
            return
        else:
            with numbers:
                batches = iter(make())
            fresh = True


class _Numbers:
    """Streams of random numbers that go on wherever the ``with`` block is entered again."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._mine: dict[str, Any] = {}
        self._others: dict[str, Any] = {}

    def __enter__(self) -> None:
        for name, (seed, get, put) in _streams().items():
            self._others[name] = get()
            if name in self._mine:
                put(self._mine[name])
            else:
                seed(self._seed)

    def __exit__(self, *error: object) -> None:
        for name, (_, get, put) in _streams().items():
            self._mine[name] = get()
            if name in self._others:
                put(self._others[name])


def _streams() -> dict[str, tuple[Callable[[int], Any], Callable[[], Any], Callable[[Any], Any]]]:
    """Return how each stream is begun, read and set; NumPy's where it has been imported."""
    found: dict[str, Any] = {
        "torch": (torch.default_generator.manual_seed, torch.get_rng_state, torch.set_rng_state),
        "python": (random.seed, random.getstate, random.setstate),
    }
    if numpy := sys.modules.get("numpy"):
        # Its seeds have 32 bits.
        stream = numpy.random
        found["numpy"] = (lambda n: stream.seed(n % 2**32), stream.get_state, stream.set_state)
    return found


def agree(there: bool, device: torch.device) -> bool:
    """Return ``there``, which must be the same on all ranks; all ranks call it.

    Raises
    ------
    PipelineError
        On every rank, if it is not.
    """
    count = torch.tensor([int(there)], device=device)
    dist.all_reduce(count)
    if int(count) not in (0, dist.get_world_size()):
        raise PipelineError("data.py ends on some ranks earlier than on others")
    return there


def check_alike(
    microbatches: Sequence[Microbatch],
    device: torch.device,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Refuse a step for which the ranks of a group have different data; all of them call it.

    Raises
    ------
    PipelineError
        On every rank, if any two differ in inputs or targets.
    """
    mine = torch.tensor([_checksum(microbatches)], device=device)
    lowest, highest = mine.clone(), mine.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN, group=group)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX, group=group)
    if int(lowest) != int(highest):
        raise PipelineError(
            "the ranks have different data: batches() in data.py must yield the same on each"
        )


def _checksum(microbatches: Sequence[Microbatch]) -> int:
    total = 0
    for part in microbatches:
        for value in (*part.inputs.values(), *part.targets):
            total = zlib.crc32(_sample(value), total)
    return total


def _sample(value: object) -> bytes:
    """Return the shape and the first bytes of a tensor; other values as text."""
    if not isinstance(value, Tensor):
        return repr(value).encode()
    count = _CHECKED_BYTES // value.element_size()
    flat = value.detach().reshape(-1)[:count].cpu().contiguous()
    return repr(tuple(value.shape)).encode() + flat.view(torch.uint8).numpy().tobytes()
