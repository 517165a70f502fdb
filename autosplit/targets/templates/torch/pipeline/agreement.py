"""Every rank draws its own copy of a batch: the copies must be the same."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from .batches import Microbatch
from .errors import PipelineError

T = TypeVar("T")

_CHECKED_BYTES = 65536
"""Bytes of each tensor that are compared; ranks that drift apart differ everywhere."""


def draw(make: Callable[[], Iterable[T]], seed: int) -> Iterator[T]:
    """Yield batches without end, drawn from random numbers of their own.

    The stages use up random numbers differently (dropout), and data drawn from the same stream
    would soon differ from rank to rank. A source that ends is started again.

    Raises
    ------
    PipelineError
        If ``make`` yields nothing.
    """
    state = torch.Generator().manual_seed(seed).get_state()
    batches = iter(make())
    fresh = True
    while True:
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state)
            batch = next(batches, None)
            state = torch.get_rng_state()
        if batch is not None:
            fresh = False
            yield batch
        elif fresh:
            raise PipelineError("batches() in data.py yields nothing")
        else:
            batches, fresh = iter(make()), True


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
