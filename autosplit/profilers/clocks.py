"""Clocks that time a pass over many layers without disturbing it.

A pass sets marks; times between marks are asked for after it. On a GPU the marks are events on
the stream, and the one synchronisation comes after the last of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch

_LONGEST_LEAD_S = 0.5
_SPIN_CYCLES_PER_S = 2e9


class Clock(Protocol):
    """Sets marks in a pass and tells the seconds between two of them afterwards."""

    kind: Literal["thread", "wall", "event"]
    host_s: float
    """Time in which the host issued the last pass; 0 where it runs it itself."""
    device_s: float
    """Time in which the device ran the last pass."""

    def start(self) -> None:
        """Get ready for a pass."""
        ...

    def mark(self) -> Any:
        """Set a mark here."""
        ...

    def stop(self) -> None:
        """Wait until all marks have been passed."""
        ...

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two marks of a stopped pass."""
        ...

    def frequency_mhz(self) -> int | None:
        """Return how fast a GPU ticks now; None where nobody can tell."""
        ...


class CpuClock:
    """CPU time of this thread when it alone computes, else wall time.

    Other programs on the machine take slices of wall time out of the long layers and none out
    of most short ones, so that wall times of layers do not add up.
    """

    kind: Literal["thread", "wall", "event"]
    host_s = 0.0
    device_s = 0.0

    def __init__(self, threads: int) -> None:
        self.kind = "thread" if threads == 1 else "wall"
        self.mark: Callable[[], float] = (
            time.thread_time if self.kind == "thread" else time.perf_counter
        )

    def start(self) -> None:
        """Do nothing: the clock always runs."""

    def stop(self) -> None:
        """Do nothing: marks are passed when they are set."""

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds between two marks."""
        return end - begin

    def frequency_mhz(self) -> None:
        """Return None: cores of a processor tick each at a pace of its own."""


@dataclass(slots=True)
class _EventMark:
    event: Any
    host_s: float


class CudaClock:
    """Events on the current stream of a device.

    Parameters
    ----------
    device
        Device whose stream is timed.
    cuda
        ``torch.cuda``, or a stand-in that records what is called.
    """

    kind: Literal["thread", "wall", "event"] = "event"

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        self._device = device
        self._cuda = cuda
        self._marks: list[_EventMark] = []
        self._spare: list[Any] = []
        self._lead_s = 0.0
        self.host_s = 0.0
        self.device_s = 0.0

    def start(self) -> None:
        """Wait for the device, then keep it busy while the host issues the first layers.

        Else the intervals of small layers would show how fast Python is, not the device.
        """
        self._spare.extend(mark.event for mark in self._marks)
        self._marks.clear()
        self._cuda.synchronize(self._device)
        spin = getattr(self._cuda, "_sleep", None)
        if spin is not None and self._lead_s > 0:
            spin(int(self._lead_s * _SPIN_CYCLES_PER_S))

    def mark(self) -> _EventMark:
        """Record an event on the current stream."""
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record(self._cuda.current_stream(self._device))
        mark = _EventMark(event, time.perf_counter())
        self._marks.append(mark)
        return mark

    def stop(self) -> None:
        """Synchronise, once for the whole pass."""
        self._cuda.synchronize(self._device)
        if self._marks:
            first, last = self._marks[0], self._marks[-1]
            self.host_s = last.host_s - first.host_s
            self.device_s = self.seconds(first, last)
            self._lead_s = min(self.host_s, _LONGEST_LEAD_S)

    def seconds(self, begin: _EventMark, end: _EventMark) -> float:
        """Return the seconds between two events, which count in milliseconds."""
        return float(begin.event.elapsed_time(end.event)) / 1e3

    def frequency_mhz(self) -> int | None:
        """Return the clock of the multiprocessors, if NVML and its Python package are here."""
        try:
            return int(self._cuda.clock_rate(self._device))
        except Exception:  # NVML has errors of its own for each way to be missing
            return None
