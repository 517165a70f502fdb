"""Measures how long a stage computes: by the clock of the process, or by events on its device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Clock:
    """Adds up the seconds spent inside ``running``.

    On CUDA these are seconds of the device, which is not waited for: work that is not done yet
    counts in a later ``read``.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._events: deque[tuple[Any, Any]] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the ``with`` block."""
        if self._cuda:
            begin, end = _event(), _event()
            begin.record()
            yield
            end.record()
            self._events.append((begin, end))
            self._collect()
        else:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started

    def read(self) -> float:
        """Return the seconds since the last call."""
        self._collect()
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _collect(self) -> None:
        while self._events and self._events[0][1].query():
            begin, end = self._events.popleft()
            self._seconds += begin.elapsed_time(end) / 1e3


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
