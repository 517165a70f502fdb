"""Measuring some layers: when it stops, what it remarks, and how it drives a GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from autosplit.journal import Journal
from autosplit.profilers import ProfileOptions
from autosplit.profilers.clocks import Clock, CpuClock, CudaClock
from autosplit.profilers.session import SampleSet, Session, choose_clock
from autosplit.profilers.whole import WholeStep
from tests.profilers.models import Function, residual
from tests.profilers.recorded_cuda import RecordedCuda

CPU = torch.device("cpu")
OPTIONS = ProfileOptions(device="cpu", min_repetitions=3, max_repetitions=6, precision=0.5)


def session(clock: Clock, options: ProfileOptions = OPTIONS) -> Session:
    model, inputs = residual()
    compute = Function(("x", "index"), ("y",), lambda x, index: (model.whole(x, index),))
    state = [*model.first.parameters(), *model.second.parameters()]
    return Session(model.step, state, WholeStep(compute, inputs, True), CPU, clock, options)


def passes(log: list[str]) -> list[list[str]]:
    """Return what was called between the waits before and after each pass."""
    found: list[list[str]] = [[]]
    for entry in log:
        if entry == "synchronize":
            found.append([])
        else:
            found[-1].append(entry)
    return found


def test_a_gpu_is_never_waited_for_inside_a_pass() -> None:
    cuda = RecordedCuda(step_ms=1.0)
    samples = session(CudaClock(torch.device("cuda", 0), cuda)).times(
        lambda done, what: None, Journal()
    )
    for calls in passes(cuda.log):
        if "record" in calls:
            assert set(calls) <= {"sleep", "record"}
            assert "sleep" not in calls[calls.index("record") :]
    # Layers, empty layers and the whole step, each between two events one millisecond apart.
    assert samples.forward[0] == pytest.approx([1e-3] * 4)
    assert samples.backward[0] == pytest.approx([1e-3] * 4)
    assert samples.whole[0] == pytest.approx((1e-3, 1e-3))
    assert samples.empty == pytest.approx([1e-3] * len(samples.empty))


def test_equal_samples_need_the_fewest_repetitions() -> None:
    clock = CudaClock(torch.device("cuda", 0), RecordedCuda())
    done: list[int] = []
    samples = session(clock).times(lambda count, what: done.append(count), Journal())
    assert len(samples) == 3
    assert done == [0, 1, 2, 3]


def test_a_precision_out_of_reach_ends_at_the_limit_and_is_said() -> None:
    options = dataclasses.replace(OPTIONS, precision=0.0)
    subject = session(CpuClock(1), options)
    samples = subject.times(lambda done, what: None, Journal())
    assert len(samples) == 6
    assert any("after 6 repetitions" in note for note in samples.notes([[0, 1, 2, 3]], options))


def test_time_that_is_up_ends_the_repetitions() -> None:
    options = dataclasses.replace(OPTIONS, precision=0.0, max_seconds=0.0)
    assert len(session(CpuClock(1), options).times(lambda done, what: None, Journal())) == 3


def test_a_busy_machine_and_a_drift_are_said() -> None:
    samples = SampleSet(forward=[[1.0], [1.0], [2.0]], backward=[[0.0]] * 3, wall_s=3.0, cpu_s=1.0)
    notes = " ".join(samples.notes([[0]], OPTIONS))
    assert "wall time was 3.00 times" in notes
    assert "100 % slower" in notes


def test_each_device_has_its_clock() -> None:
    assert choose_clock(CPU, 1).kind == "thread"
    assert choose_clock(CPU, 4).kind == "wall"
    assert choose_clock(torch.device("cuda", 0), 1).kind == "event"
