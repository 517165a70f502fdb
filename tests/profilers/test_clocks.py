"""Clocks: what they read, and that the one for GPUs never waits inside a pass."""

from __future__ import annotations

import time

import pytest
import torch

from autosplit.profilers.clocks import CpuClock, CudaClock
from tests.profilers.recorded_cuda import RecordedCuda


def test_one_thread_is_timed_by_its_own_cpu_time() -> None:
    clock = CpuClock(threads=1)
    assert clock.kind == "thread"
    begin = clock.mark()
    time.sleep(0.05)
    assert clock.seconds(begin, clock.mark()) < 0.04


def test_several_threads_are_timed_by_the_wall() -> None:
    clock = CpuClock(threads=2)
    assert clock.kind == "wall"
    begin = clock.mark()
    time.sleep(0.01)
    assert clock.seconds(begin, clock.mark()) >= 0.01


def test_gpu_is_waited_for_before_and_after_a_pass_only() -> None:
    cuda = RecordedCuda(step_ms=2.0)
    clock = CudaClock(torch.device("cuda", 1), cuda)
    clock.start()
    marks = [clock.mark() for _ in range(4)]
    clock.stop()
    assert cuda.log == ["synchronize", *["record"] * 4, "synchronize", "elapsed"]
    assert clock.seconds(marks[0], marks[3]) == pytest.approx(6e-3)
    assert clock.device_s == pytest.approx(6e-3)


def test_gpu_gets_a_lead_from_the_second_pass_on_and_events_are_used_again() -> None:
    cuda = RecordedCuda()
    clock = CudaClock(torch.device("cuda", 0), cuda)
    for _ in range(2):
        clock.start()
        for _ in range(3):
            clock.mark()
        clock.stop()
    assert cuda.log.count("sleep") == 1
    assert cuda.log.index("sleep") > cuda.log.index("elapsed")
    assert cuda.events == 3


def test_a_time_is_refused_by_the_stand_in_before_the_device_is_done() -> None:
    clock = CudaClock(torch.device("cuda", 0), RecordedCuda())
    clock.start()
    begin, end = clock.mark(), clock.mark()
    with pytest.raises(AssertionError, match="before the device"):
        clock.seconds(begin, end)
