"""One measurement of some layers: memory first, then times until they are known well enough."""

from __future__ import annotations

import math
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
from autosplit.profilers.quality import Quality
from autosplit.profilers.statistics import (
    Classes,
    Samples,
    classes_of,
    drift,
    error_bound,
    pooled,
    timings,
)
from autosplit.profilers.watches import MemoryWatch, SavedWatch, TimingWatch
from autosplit.profilers.whole import WholeStep
from autosplit.types import Timing
from autosplit.units import format_share

_SPLIT_SAMPLES = 3
"""Samples of the backward by inputs alone, of the layers that take most of the time."""

_WHOLE_EVERY = 3
"""Repetitions of the layers to one of the whole step."""


def choose_clock(device: torch.device, threads: int) -> Clock:
    """Return the clock for a device."""
    return CudaClock(device) if device.type == "cuda" else CpuClock(threads)


@dataclass(frozen=True, slots=True)
class Repetition:
    """Seconds of one pass.

    Parameters
    ----------
    forward, backward
        Of each layer.
    empty
        Of empty layers.
    whole
        Forward and backward of the whole step, if it was run.
    wall_s, cpu_s
        Of all that, by the wall and of the processor.
    backward_input
        Of the backward of each layer without gradients of parameters, if that was run.
    first
        As ``whole``, of the first micro-batch of a step, which finds no gradients to add to.
    host_s, device_s
        In which the host issued the pass over the layers, and a GPU ran it.
    frequency_mhz
        How fast a GPU ticked then.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    empty: tuple[float, ...]
    whole: tuple[float, float] | None
    wall_s: float
    cpu_s: float
    backward_input: tuple[float, ...] = ()
    first: tuple[float, float] | None = None
    host_s: float = 0.0
    device_s: float = 0.0
    frequency_mhz: int | None = None


@dataclass(frozen=True, slots=True)
class Lead:
    """What is learnt while a step warms up; as in ``Repetition``."""

    backward_input: tuple[float, ...] = ()
    first: tuple[float, float] | None = None


@dataclass
class SampleSet:
    """Seconds of every repetition."""

    repetitions: list[Repetition] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.repetitions)

    @property
    def forward(self) -> Samples:
        """Forward seconds, of shape (repetitions, layers)."""
        return np.array([each.forward for each in self.repetitions])

    @property
    def backward(self) -> Samples:
        """Backward seconds, of shape (repetitions, layers)."""
        return np.array([each.backward for each in self.repetitions])

    @property
    def empty(self) -> list[float]:
        """Seconds of all empty layers."""
        return [seconds for each in self.repetitions for seconds in each.empty]

    @property
    def whole(self) -> list[tuple[float, float]]:
        """Forward and backward seconds of the whole step."""
        return [each.whole for each in self.repetitions if each.whole is not None]

    @property
    def first(self) -> list[tuple[float, float]]:
        """Forward and backward seconds of the first micro-batch of a step."""
        return [each.first for each in self.repetitions if each.first is not None]

    def per_repetition(self, classes: Classes) -> int:
        """Return how many samples a repetition gives of the layers that take most."""
        return pooled(self.forward + self.backward, classes)

    def lacks_split(self, classes: Classes) -> bool:
        """Tell whether more backwards by inputs alone are needed."""
        if not self.repetitions:
            return True
        split = sum(bool(each.backward_input) for each in self.repetitions)
        return split * self.per_repetition(classes) < _SPLIT_SAMPLES

    def error_bound(self, classes: Classes) -> float:
        """Return the bound on the error of the sum over all layers, both ways."""
        return error_bound(self.forward + self.backward, classes)

    def weight_gradient_s(
        self, backward: Sequence[Timing], classes: Classes, trains: Sequence[bool]
    ) -> list[float]:
        """Return the part of each backward that goes when gradients of parameters do.

        Input and weight gradient share work inside of a layer, so that the second cannot be
        timed alone: it is what the first leaves of the whole. ``trains`` tells which layers
        have parameters.
        """
        split = [each.backward_input for each in self.repetitions if each.backward_input]
        if not split:
            return [0.0] * len(backward)
        inputs = timings(np.array(split), classes)
        return [
            max(0.0, whole.median_s - part.median_s) if has_parameters else 0.0
            for whole, part, has_parameters in zip(backward, inputs, trains, strict=True)
        ]

    def quality(self, classes: Classes) -> Quality:
        """Return how far the numbers can be trusted."""
        count = len(self.repetitions)
        first, last = self.repetitions[0].frequency_mhz, self.repetitions[-1].frequency_mhz
        return Quality(
            repetitions=count,
            bound=self.error_bound(classes),
            wall_s=math.fsum(each.wall_s for each in self.repetitions),
            cpu_s=math.fsum(each.cpu_s for each in self.repetitions),
            drift=drift((self.forward + self.backward).sum(axis=1)),
            host_s=math.fsum(each.host_s for each in self.repetitions) / count,
            device_s=math.fsum(each.device_s for each in self.repetitions) / count,
            clocks_mhz=None if first is None or last is None else (first, last),
        )


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
        samples = SampleSet(journal.records(Repetition))
        classes = classes_of(self.keys())
        begin = time.monotonic()
        warm = False
        while True:
            bound = samples.error_bound(classes) if len(samples) > 1 else 1.0
            report(len(samples), f"precision {format_share(bound)}")
            if self._enough(samples, classes, bound, time.monotonic() - begin):
                return samples
            split = self.step.training and samples.lacks_split(classes)
            lead = self.lead() if split or not warm else None
            warm = True
            repetition = self.repetition(
                lead if split else None, whole=len(samples) % _WHOLE_EVERY == 0
            )
            samples.repetitions.append(repetition)
            journal.append(repetition)

    def _enough(self, samples: SampleSet, classes: Classes, bound: float, spent_s: float) -> bool:
        """Tell whether the layers are known well enough, or a limit is reached."""
        options, count = self._options, len(samples)
        if count >= options.max_repetitions or count < options.min_repetitions:
            return count >= options.max_repetitions
        if spent_s > options.max_seconds:
            return True
        known = samples.per_repetition(classes) * count >= options.min_samples
        return known and bound <= options.precision

    def keys(self) -> list[tuple[str, tuple[bool, ...]]]:
        """Return what must be equal for layers to be pooled: structure and flow of gradients."""
        return [
            (
                piece.layer.structure,
                tuple(name in self.step.returned for name in piece.compute.outputs),
            )
            for piece in self.step.pieces
        ]

    def lead(self) -> Lead:
        """Run layers and whole once, which warms them up, and learn what one pass can tell.

        In training these are a backward without gradients of parameters, and the first
        micro-batch of a step, which finds no gradients to add to.
        """
        if not self.step.training:
            self._timed()
            if self._whole is not None:
                self._whole.run(self._clock)
            return Lead()
        return Lead(tuple(self._timed(weights=False)[1]), self._first())

    def repetition(self, lead: Lead | None = None, *, whole: bool = True) -> Repetition:
        """Time all layers, then perhaps the whole step; note wall against CPU time.

        What ``lead`` has learnt is noted with it.
        """
        wall, cpu = time.perf_counter(), time.process_time()
        forward, backward, empty = self._timed()
        issued = (self._clock.host_s, self._clock.device_s)
        step = self._whole.run(self._clock) if whole and self._whole is not None else None
        known = lead or Lead()
        return Repetition(
            tuple(forward),
            tuple(backward),
            tuple(empty),
            step,
            time.perf_counter() - wall,
            time.process_time() - cpu,
            known.backward_input,
            known.first,
            *issued,
            self._clock.frequency_mhz(),
        )

    def _timed(self, *, weights: bool = True) -> tuple[list[float], list[float], list[float]]:
        self._watch.reset()
        self._clock.start()
        self.step.run(self._watch, weights=weights)
        self._clock.stop()
        return self._watch.seconds()

    def _first(self) -> tuple[float, float] | None:
        """Time the whole step with no gradients there, which it makes again."""
        if self._whole is None:
            return None
        for tensor in self._state:
            if tensor.is_leaf:
                tensor.grad = None
        return self._whole.run(self._clock)


def trained(names: Sequence[str], state: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Return those of the named state that are trained."""
    return tuple(state[name] for name in names if state[name].requires_grad)
