"""A stand-in for ``torch.cuda`` that writes down what is called and computes nothing."""

from __future__ import annotations

from typing import Any


class RecordedEvent:
    def __init__(self, cuda: RecordedCuda) -> None:
        self._cuda = cuda
        self.at_ms: float | None = None

    def record(self, stream: str) -> None:
        self._cuda.log.append("record")
        self._cuda.now_ms += self._cuda.step_ms
        self.at_ms = self._cuda.now_ms

    def elapsed_time(self, end: RecordedEvent) -> float:
        self._cuda.log.append("elapsed")
        assert self.at_ms is not None
        assert end.at_ms is not None
        assert self._cuda.synchronised, "a time was asked for before the device was done"
        return end.at_ms - self.at_ms


class RecordedCuda:
    """Each recorded event stands ``step_ms`` after the one before."""

    def __init__(self, step_ms: float = 2.0) -> None:
        self.log: list[str] = []
        self.now_ms = 0.0
        self.step_ms = step_ms
        self.allocated = 0
        self.peak = 0
        self.events = 0

    @property
    def synchronised(self) -> bool:
        waits = [i for i, entry in enumerate(self.log) if entry == "synchronize"]
        records = [i for i, entry in enumerate(self.log) if entry == "record"]
        return bool(waits) and (not records or waits[-1] > records[-1])

    def Event(self, enable_timing: bool) -> RecordedEvent:  # noqa: N802 - the torch API
        assert enable_timing
        self.events += 1
        return RecordedEvent(self)

    def current_stream(self, device: Any) -> str:
        return f"stream of {device}"

    def synchronize(self, device: Any) -> None:
        self.log.append("synchronize")

    def clock_rate(self, device: Any) -> int:
        self.log.append("clock_rate")
        return 1980

    def _sleep(self, cycles: int) -> None:
        self.log.append("sleep")

    def memory_allocated(self, device: Any) -> int:
        self.log.append("memory_allocated")
        return self.allocated

    def max_memory_allocated(self, device: Any) -> int:
        self.log.append("max_memory_allocated")
        return self.peak

    def reset_peak_memory_stats(self, device: Any) -> None:
        self.log.append("reset_peak")
        self.peak = self.allocated
