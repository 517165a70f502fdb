"""Measuring some layers: when it stops, what it remarks, and how it drives a GPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from autosplit.journal import Journal
from autosplit.profilers import ProfileOptions
from autosplit.profilers.clocks import Clock, CpuClock, CudaClock
from autosplit.profilers.quality import remarks
from autosplit.profilers.session import Repetition, SampleSet, Session, choose_clock
from autosplit.profilers.statistics import timings
from autosplit.profilers.whole import WholeStep
from tests.profilers.models import Function, residual
from tests.profilers.recorded_cuda import RecordedCuda

CPU = torch.device("cpu")
OPTIONS = ProfileOptions(
    device="cpu", min_repetitions=3, max_repetitions=6, min_samples=3, precision=0.5
)


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
    quality = samples.quality([[0, 1, 2, 3]])
    assert any("after 6 repetitions" in text for text in remarks([quality], options.precision))


def test_time_that_is_up_ends_the_repetitions() -> None:
    options = dataclasses.replace(OPTIONS, precision=0.0, max_seconds=0.0)
    assert len(session(CpuClock(1), options).times(lambda done, what: None, Journal())) == 3


def repeated(*forward_s: float, **others: Any) -> SampleSet:
    return SampleSet(
        [Repetition((seconds,), (0.0,), (), None, 3.0, 1.0, **others) for seconds in forward_s]
    )


def test_a_busy_machine_and_a_drift_are_said() -> None:
    notes = " ".join(remarks([repeated(1.0, 1.0, 2.0).quality([[0]])], OPTIONS.precision))
    assert "wall time was 3.00 times" in notes
    assert "100 % slower" in notes


def test_a_gpu_that_waits_for_its_host_is_said() -> None:
    samples = repeated(1.0, 1.0, host_s=2e-3, device_s=1e-3, frequency_mhz=1980)
    quality = samples.quality([[0]])
    assert (quality.host_s, quality.device_s) == pytest.approx((2e-3, 1e-3))
    assert quality.clocks_mhz == (1980, 1980)
    assert any("the host holds the GPU up" in text for text in remarks([quality], 1.0))


def test_what_a_gpu_tells_beside_its_times_is_noted() -> None:
    cuda = RecordedCuda(step_ms=1.0)
    found = session(CudaClock(torch.device("cuda", 0), cuda)).repetition()
    # Four layers forward, four backward and four empty ones, two events each.
    assert found.device_s == pytest.approx(23e-3)
    assert found.host_s > 0
    assert found.frequency_mhz == 1980
    assert "clock_rate" not in cuda.log[: len(cuda.log) - 1 - cuda.log[::-1].index("synchronize")]


def test_some_repetitions_look_at_input_gradients_and_the_first_micro_batch() -> None:
    options = dataclasses.replace(OPTIONS, min_repetitions=5, max_repetitions=5)
    subject = session(CpuClock(1), options)
    samples = subject.times(lambda done, what: None, Journal())
    extra = [bool(each.backward_input) for each in samples.repetitions]
    assert extra == [True] * 3 + [False] * 2
    assert [each.first is not None for each in samples.repetitions] == extra
    assert [each.whole is not None for each in samples.repetitions] == [
        True,
        False,
        False,
        True,
        False,
    ]
    # The first layer takes nothing that wants a gradient.
    assert samples.repetitions[0].backward_input[0] == 0
    assert min(samples.repetitions[0].backward_input[1:]) > 0
    assert all(tensor.grad is not None for tensor in subject.step.pieces[0].parameters)


def test_layers_have_enough_samples_however_equal_those_are() -> None:
    options = dataclasses.replace(OPTIONS, min_samples=5)
    subject = session(CudaClock(torch.device("cuda", 0), RecordedCuda()), options)
    assert len(subject.times(lambda done, what: None, Journal())) == 5
    subject = session(
        CudaClock(torch.device("cuda", 0), RecordedCuda()),
        dataclasses.replace(options, max_seconds=0.0),
    )
    assert len(subject.times(lambda done, what: None, Journal())) == 3


def test_a_gradient_of_weights_is_what_that_of_inputs_leaves() -> None:
    samples = SampleSet(
        [
            Repetition((1.0,) * 4, (3.0,) * 4, (), None, 1.0, 1.0, backward_input=inputs)
            for inputs in ((1.0, 2.0, 0.0, 4.0), (1.2, 2.0, 0.0, 4.0), (1.4, 2.0, 0.0, 4.0))
        ]
    )
    own = [[place] for place in range(4)]
    backward = timings(samples.backward, own)
    found = samples.weight_gradient_s(backward, own, [True, False, True, True])
    # The second has no parameters, the third no inputs, and noise makes nothing negative.
    assert found == pytest.approx([1.8, 0.0, 3.0, 0.0])
    assert SampleSet().weight_gradient_s(backward, own, [True] * 4) == [0.0] * 4


def test_each_device_has_its_clock() -> None:
    assert choose_clock(CPU, 1).kind == "thread"
    assert choose_clock(CPU, 4).kind == "wall"
    assert choose_clock(torch.device("cuda", 0), 1).kind == "event"
