"""One measurement of some layers: memory first, then times until they are known well enough."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from autosplit.journal import Journal
from autosplit.profilers.base import ProfileOptions
from autosplit.profilers.clocks import Clock, CpuClock, CudaClock
from autosplit.profilers.memory import CudaMemory, LiveStorages, MemoryMeter
from autosplit.profilers.passes import Step
from autosplit.profilers.statistics import Classes, classes_of, drift, error_bound
from autosplit.profilers.watches import MemoryWatch, SavedWatch, TimingWatch
from autosplit.profilers.whole import WholeStep
from autosplit.units import format_share

_WARM_UP_PASSES = 1
"""Timed passes that are thrown away, after the two passes that look at memory."""

_CONTENDED = 1.2
"""Wall time over CPU time from which on the machine is called busy."""

_DRIFTING = 0.05
"""Change between the first and last third of the repetitions that is worth a remark."""


def choose_clock(device: torch.device, threads: int) -> Clock:
    """Return the clock for a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock(threads)


@dataclass(frozen=True, slots=True)
class Repetition:
    """Seconds of one pass: of each layer, of empty layers, of the whole step if it was run."""

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    empty: tuple[float, ...]
    whole: tuple[float, float] | None
    wall_s: float
    cpu_s: float


@dataclass
class SampleSet:
    """Seconds of every repetition."""

    forward: list[tuple[float, ...]] = field(default_factory=list)
    backward: list[tuple[float, ...]] = field(default_factory=list)
    empty: list[float] = field(default_factory=list)
    whole: list[tuple[float, float]] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __len__(self) -> int:
        return len(self.forward)

    def add(self, repetition: Repetition) -> None:
        """Take in one more repetition."""
        self.forward.append(repetition.forward)
        self.backward.append(repetition.backward)
        self.empty.extend(repetition.empty)
        if repetition.whole is not None:
            self.whole.append(repetition.whole)
        self.wall_s += repetition.wall_s
        self.cpu_s += repetition.cpu_s

    def error_bound(self, classes: Classes) -> float:
        """Return the bound on the error of the sum over all layers, both ways."""
        return error_bound(np.array(self.forward) + np.array(self.backward), classes)

    def notes(self, classes: Classes, options: ProfileOptions) -> tuple[str, ...]:
        """Return remarks for the user on how far the numbers can be trusted."""
        found: list[str] = []
        bound = self.error_bound(classes)
        if bound > options.precision:
            found.append(
                f"precision {format_share(bound)} after {len(self)} repetitions "
                f"(asked for {format_share(options.precision)})"
            )
        if self.cpu_s > 0 and self.wall_s / self.cpu_s > _CONTENDED:
            found.append(
                f"the machine was busy: wall time was {self.wall_s / self.cpu_s:.2f} times "
                "the CPU time of the measurement"
            )
        change = drift((np.array(self.forward) + np.array(self.backward)).sum(axis=1))
        if abs(change) > _DRIFTING:
            word = "slower" if change > 0 else "faster"
            found.append(
                f"later repetitions were {format_share(abs(change))} {word} than the first"
            )
        return tuple(found)


class Session:
    """Measures the layers of a step.

    Parameters
    ----------
    step
        The layers.
    state
        Parameters, buffers and constants that they use.
    whole
        The same operations in one piece, or None.
    """

    def __init__(
        self,
        step: Step,
        state: Iterable[Tensor],
        whole: WholeStep | None,
        device: torch.device,
        clock: Clock,
        options: ProfileOptions,
    ) -> None:
        self.step = step
        self._state = tuple(state)
        self._whole = whole
        self._device = device
        self._clock = clock
        self._options = options
        self._watch = TimingWatch(clock, len(step.pieces), device)

    def saved(self) -> SavedWatch:
        """Run a pass that learns what backward keeps."""
        watch = SavedWatch(self.step.pieces, self._state)
        with watch.hooks():
            self.step.run(watch)
        return watch

    def workspace_bytes(self) -> list[int]:
        """Run a pass that learns what each layer needs for a moment."""
        gradients = (tensor.grad for tensor in self._state if tensor.is_leaf)
        known = [*self._state, *self.step.inputs.values(), *self.step.seeds.values()]
        known += [gradient for gradient in gradients if gradient is not None]
        meter: MemoryMeter = (
            CudaMemory(self._device) if self._device.type == "cuda" else LiveStorages(known)
        )
        watch = MemoryWatch(meter, len(self.step.pieces))
        with meter:
            self.step.run(watch)
        return watch.workspace_bytes

    def times(self, report: Callable[[int, str], None], journal: Journal) -> SampleSet:
        """Repeat until the sum over layers is known precisely enough, or a limit is reached.

        Repetitions that the journal holds are taken from there, new ones are added to it.
        """
        options = self._options
        samples = SampleSet()
        for repetition in journal.records(Repetition):
            samples.add(repetition)
        classes = classes_of(self.keys())
        begin = time.monotonic()
        warm_up = _WARM_UP_PASSES
        while True:
            bound = samples.error_bound(classes) if len(samples) > 1 else 1.0
            report(len(samples), f"precision {format_share(bound)}")
            late = time.monotonic() - begin > options.max_seconds
            enough = len(samples) >= options.min_repetitions and (
                bound <= options.precision or late
            )
            if enough or len(samples) >= options.max_repetitions:
                return samples
            while warm_up > 0:
                self.repetition()
                warm_up -= 1
            repetition = self.repetition()
            samples.add(repetition)
            journal.append(repetition)

    def keys(self) -> list[tuple[str, tuple[bool, ...]]]:
        """Return what must be equal for layers to be pooled: structure and flow of gradients."""
        return [
            (
                piece.layer.structure,
                tuple(name in self.step.returned for name in piece.compute.outputs),
            )
            for piece in self.step.pieces
        ]

    def repetition(self) -> Repetition:
        """Time all layers, then the whole step; note wall against CPU time."""
        wall, cpu = time.perf_counter(), time.process_time()
        self._watch.reset()
        self._clock.start()
        self.step.run(self._watch)
        self._clock.stop()
        forward, backward, empty = self._watch.seconds()
        whole = None if self._whole is None else self._whole.run(self._clock)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        return Repetition(tuple(forward), tuple(backward), tuple(empty), whole, wall_s, cpu_s)


def trained(names: Sequence[str], state: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return those of the named state that are trained."""
    return tuple(state[name] for name in names if state[name].requires_grad)
