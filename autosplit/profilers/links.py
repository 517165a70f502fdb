"""Time the link between two ranks, and a device at its work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autosplit.types import LinkSpeed

_LATENCY_TRIPS = 40
_TRIPS = 8
_WARM_UP = 2
_SMALLEST, _LARGEST = 2**16, 2**27
_GROWTH = 4
_STEADY = 0.05
"""Change of the bytes per second from one size to the next at which messages are large enough."""
_LONG_S = 0.5
"""A trip that takes longer is the last: a slow link is known well by then."""
_FITTED = 3
"""Sizes that the bandwidth is fitted to, the largest."""
_MATRIX = {"cpu": (768, torch.float32), "cuda": (4096, torch.bfloat16)}
_WORK_S = 0.3


class Wire:
    """One end of the link between this rank and another.

    One end leads: it says how many bytes to send and how often, and measures. A trip is a message
    one way and a byte back. All ranks must have met in a collective before.

    Parameters
    ----------
    peer
        The other rank.
    device
        Where messages lie.
    """

    def __init__(self, peer: int, device: torch.device) -> None:
        self.peer, self.device = peer, device
        self._byte = torch.zeros(1, dtype=torch.uint8, device=device)

    def lead(self) -> LinkSpeed:
        """Measure the way from here to the peer, which follows."""
        latency_s = self._trip_s(1, _LATENCY_TRIPS) / 2
        samples: list[tuple[int, float]] = []
        size = _SMALLEST
        while size <= _LARGEST and not _is_enough(samples):
            samples.append((size, self._trip_s(size, _TRIPS)))
            size *= _GROWTH
        self._tell(0, 0)
        return LinkSpeed(1 / seconds_per_byte(samples), latency_s)

    def follow(self) -> None:
        """Answer the peer, which leads, until it is done."""
        while True:
            told = torch.zeros(2, dtype=torch.int64, device=self.device)
            self._receive(told)
            size, trips = told.tolist()
            if not size:
                return
            message = torch.empty(size, dtype=torch.uint8, device=self.device)
            for _ in range(trips):
                self._receive(message)
                self._send(self._byte)

    def _trip_s(self, size: int, count: int) -> float:
        """Return the first quartile of some trips, after a few to warm up.

        Whatever else runs only makes trips longer: the quicker ones tell of the link.
        """
        self._tell(size, _WARM_UP + count)
        message = torch.zeros(size, dtype=torch.uint8, device=self.device)
        seconds = []
        for _ in range(_WARM_UP + count):
            _finish(self.device)
            started = time.perf_counter()
            self._send(message)
            self._receive(self._byte)
            _finish(self.device)
            seconds.append(time.perf_counter() - started)
        return sorted(seconds[_WARM_UP:])[count // 4]

    def _tell(self, size: int, trips: int) -> None:
        self._send(torch.tensor([size, trips], device=self.device))

    def _send(self, tensor: Tensor) -> None:
        self._transfer(dist.isend, tensor)

    def _receive(self, tensor: Tensor) -> None:
        self._transfer(dist.irecv, tensor)

    def _transfer(self, operation: Callable[..., Any], tensor: Tensor) -> None:
        # In a batch NCCL takes the communicator of all ranks instead of making one for each pair.
        for work in dist.batch_isend_irecv([dist.P2POp(operation, tensor, self.peer)]):
            work.wait()


def _is_enough(samples: Sequence[tuple[int, float]]) -> bool:
    """Return whether the bandwidth would not change with larger messages, or is slow anyhow."""
    if samples and samples[-1][1] > _LONG_S:
        return len(samples) > 1
    if len(samples) < _FITTED:
        return False
    before, now = (
        (large - small) / (late - early) if late > early else float("inf")
        for (small, early), (large, late) in zip(samples[-3:], samples[-2:], strict=False)
    )
    return abs(now - before) <= _STEADY * before < float("inf")


def seconds_per_byte(samples: Sequence[tuple[int, float]]) -> float:
    """Return the slope of ``seconds = start + bytes * slope`` over the largest messages.

    Least squares of the relative errors; where noise leaves no slope above zero, the seconds of
    the largest message count as they are.

    Parameters
    ----------
    samples
        Bytes and seconds, the largest last.
    """
    fitted = samples[-_FITTED:]
    weights = [1 / seconds**2 for _, seconds in fitted]
    total = sum(weights)
    middle = sum(w * size for w, (size, _) in zip(weights, fitted, strict=True)) / total
    height = sum(w * seconds for w, (_, seconds) in zip(weights, fitted, strict=True)) / total
    spread = sum(w * (size - middle) ** 2 for w, (size, _) in zip(weights, fitted, strict=True))
    rise = sum(
        w * (size - middle) * (seconds - height)
        for w, (size, seconds) in zip(weights, fitted, strict=True)
    )
    size, seconds = samples[-1]
    return rise / spread if rise > 0 else seconds / size


def flops_per_s(device: torch.device) -> float:
    """Return the rate at which a device multiplies two fixed matrices, the median of many times."""
    size, dtype = _MATRIX[device.type]
    left = torch.ones(size, size, dtype=dtype, device=device)
    seconds: list[float] = []
    while sum(seconds) < _WORK_S or len(seconds) < _WARM_UP + _TRIPS:
        _finish(device)
        started = time.perf_counter()
        torch.mm(left, left)
        _finish(device)
        seconds.append(time.perf_counter() - started)
    return 2.0 * size**3 / statistics.median(seconds[_WARM_UP:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
