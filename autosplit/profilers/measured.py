"""Measure a model that fits on the device: all of its layers, in running order."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch

from autosplit.errors import DataError
from autosplit.layers import Grouping, Layer, Work, group
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.clocks import Clock, CpuClock, CudaClock
from autosplit.profilers.environment import (
    choose_device,
    describe,
    input_tensors,
    prepared,
    state_tensors,
)
from autosplit.profilers.memory import CudaMemory, LiveStorages, MemoryMeter
from autosplit.profilers.passes import Compute, Piece, Step
from autosplit.profilers.statistics import Samples, classes_of, drift, error_bound, timings
from autosplit.profilers.summary import Findings, summarise
from autosplit.profilers.watches import MemoryWatch, SavedWatch, TimingWatch
from autosplit.profilers.whole import WholeStep
from autosplit.serialize import digest
from autosplit.tracers.base import Trace
from autosplit.tracers.replay import compile_nodes
from autosplit.types import ModelRef, Profile, WholeModel

_WARM_UP_PASSES = 1
"""Timed passes that are thrown away, after the two passes that look at memory."""

_CONTENDED = 1.2
"""Wall time over CPU time from which on the machine is called busy."""

_LARGEST_OFFSET = 3.0
"""Most that entering a layer is taken to cost, in empty layers."""

_DRIFTING = 0.05
"""Change between the first and last third of the repetitions that is worth a remark."""


@PROFILERS.register("measured")
class MeasuredProfiler:
    """Times layers on detached inputs in running order, and the whole step beside them."""

    def profile(
        self, trace: Trace, options: ProfileOptions, model: ModelRef, progress: Progress
    ) -> Profile:
        """Return time and memory of every layer of ``trace``.

        Raises
        ------
        DataError
            If the model computes nothing.
        """
        grouping = group(trace.program, granularity=options.granularity)
        if not grouping.layers:
            raise DataError("the model computes nothing that could be planned")
        device = choose_device(options.device)
        clock: Clock = CudaClock(device) if device.type == "cuda" else CpuClock(options.threads)
        with (
            keep_freed_memory(),
            prepared(trace, device, threads=options.threads, inference=options.inference),
        ):
            session = _Session(trace, grouping, device, clock, options, progress)
            findings = session.measure()
        return summarise(
            trace.program,
            grouping,
            findings,
            model=model,
            fingerprint=digest(trace.program),
            device=describe(device, options.threads, clock),
            training=not options.inference,
        )


class _Session:
    """One measurement of one model."""

    def __init__(
        self,
        trace: Trace,
        grouping: Grouping,
        device: torch.device,
        clock: Clock,
        options: ProfileOptions,
        progress: Progress,
    ) -> None:
        self._options = options
        self._clock = clock
        self._device = device
        self._progress = progress
        self._training = not options.inference
        self._state = state_tensors(trace)
        self._inputs = input_tensors(trace, device)
        self._grouping = grouping
        self._pieces = [self._piece(trace, layer) for layer in grouping.layers]
        outputs = frozenset(trace.program.outputs)
        self._step = Step(self._pieces, self._inputs, outputs, self._training)
        live = sorted(grouping.layer_of, key=trace.program.position.__getitem__)
        self._whole = WholeStep(self._compile(trace, live), self._inputs, self._training)
        work = Work(trace.program)
        self._flops = [
            sum(work.flops(trace.program.node[name]) for name in layer.nodes)
            for layer in grouping.layers
        ]

    def _piece(self, trace: Trace, layer: Layer) -> Piece:
        program = trace.program
        used = dict.fromkeys(
            name for node in layer.nodes for name in program.states_of(program.node[node])
        )
        trained = [self._state[name] for name in used if self._state[name].requires_grad]
        return Piece(layer, self._compile(trace, layer.nodes), tuple(trained))

    def _compile(self, trace: Trace, names: Sequence[str]) -> Compute:
        device = self._device if self._device.type != "cpu" else None
        training = False if self._options.inference else None
        return compile_nodes(trace, names, device=device, training=training)

    def measure(self) -> Findings:
        """Look at memory, warm up, then time until the sum is known precisely enough."""
        self._progress(0, self._options.min_repetitions, "warming up")
        saved = self._saved()
        workspace = self._workspace()
        samples = self._time()
        classes = classes_of(self._keys())
        forward = np.array(samples.forward)
        backward = np.array(samples.backward)
        return Findings(
            forward=timings(forward, classes),
            backward=timings(backward, classes),
            saved=[list(keys) for keys in saved.saved],
            value_storage=saved.value_storage,
            storage_bytes={key: saved.storage_bytes(key) for keys in saved.saved for key in keys},
            workspace_bytes=workspace,
            flops=self._flops,
            returned=frozenset(self._step.returned),
            whole=_whole_model(samples, forward, backward, classes),
            notes=_notes(samples, forward, backward, classes, self._options),
        )

    def _saved(self) -> SavedWatch:
        watch = SavedWatch(self._pieces, self._state.values())
        with watch.hooks():
            self._step.run(watch)
        return watch

    def _workspace(self) -> list[int]:
        gradients = [t.grad for t in self._state.values() if t.grad is not None]
        known = [*self._state.values(), *gradients, *self._inputs.values()]
        meter: MemoryMeter = (
            CudaMemory(self._device) if self._device.type == "cuda" else LiveStorages(known)
        )
        watch = MemoryWatch(meter, len(self._pieces))
        with meter:
            self._step.run(watch)
        return watch.workspace_bytes

    def _time(self) -> _Samples:
        options = self._options
        watch = TimingWatch(self._clock, len(self._pieces), self._device)
        for _ in range(_WARM_UP_PASSES):
            self._repeat(watch, _Samples())
        samples = _Samples()
        classes = classes_of(self._keys())
        begin = time.monotonic()
        while len(samples) < options.max_repetitions:
            self._repeat(watch, samples)
            bound = samples.error_bound(classes) if len(samples) > 1 else 1.0
            self._progress(
                len(samples),
                max(len(samples), options.min_repetitions),
                f"precision {bound:.1%}",
            )
            enough = len(samples) >= options.min_repetitions
            late = time.monotonic() - begin > options.max_seconds
            if enough and (bound <= options.precision or late):
                break
        return samples

    def _repeat(self, watch: TimingWatch, samples: _Samples) -> None:
        """Time all layers, then the whole step; note wall against CPU time."""
        wall, cpu = time.perf_counter(), time.process_time()
        watch.reset()
        self._clock.start()
        self._step.run(watch)
        self._clock.stop()
        forward, backward, empty = watch.seconds()
        samples.forward.append(forward)
        samples.backward.append(backward)
        samples.empty.extend(empty)
        samples.whole.append(self._whole.run(self._clock))
        samples.wall_s += time.perf_counter() - wall
        samples.cpu_s += time.process_time() - cpu

    def _keys(self) -> list[tuple[str, tuple[bool, ...]]]:
        """Return what must be equal for layers to be pooled: structure and flow of gradients."""
        return [
            (
                piece.layer.structure,
                tuple(name in self._step.returned for name in piece.compute.outputs),
            )
            for piece in self._pieces
        ]


class _Samples:
    """Seconds of every repetition."""

    def __init__(self) -> None:
        self.forward: list[list[float]] = []
        self.backward: list[list[float]] = []
        self.empty: list[float] = []
        self.whole: list[tuple[float, float]] = []
        self.wall_s = 0.0
        self.cpu_s = 0.0

    def __len__(self) -> int:
        return len(self.forward)

    def error_bound(self, classes: Sequence[Sequence[int]]) -> float:
        """Return the bound on the error of the sum over all layers, both ways."""
        return error_bound(np.array(self.forward) + np.array(self.backward), classes)


def _whole_model(
    samples: _Samples,
    forward: Samples,
    backward: Samples,
    classes: Sequence[Sequence[int]],
) -> WholeModel:
    """Compare the sum over layers with the whole and spread the difference over the layers.

    What a layer pays for being entered alone is at least nothing and hardly more than a few
    times an empty layer: a larger difference has other reasons.
    """
    forward_s, backward_s = (float(value) for value in np.median(samples.whole, axis=0))
    total = sum(
        timing.median_s
        for direction in (forward, backward)
        for timing in timings(direction, classes)
    )
    whole_s = forward_s + backward_s
    entered = int(np.count_nonzero(np.median(backward, axis=0))) or forward.shape[1]
    empty_s = float(np.median(samples.empty)) if samples.empty else 0.0
    offset_s = (total - whole_s) / max(1, entered - 1)
    return WholeModel(
        forward_s=forward_s,
        backward_s=backward_s,
        ratio=total / whole_s if whole_s > 0 else 0.0,
        offset_s=min(max(0.0, offset_s), _LARGEST_OFFSET * empty_s),
    )


def _notes(
    samples: _Samples,
    forward: Samples,
    backward: Samples,
    classes: Sequence[Sequence[int]],
    options: ProfileOptions,
) -> tuple[str, ...]:
    """Return remarks for the user on how far the numbers can be trusted."""
    notes: list[str] = []
    bound = samples.error_bound(classes)
    if bound > options.precision:
        notes.append(
            f"precision {bound:.1%} after {len(samples)} repetitions "
            f"(asked for {options.precision:.1%})"
        )
    if samples.cpu_s > 0 and samples.wall_s / samples.cpu_s > _CONTENDED:
        notes.append(
            f"the machine was busy: wall time was {samples.wall_s / samples.cpu_s:.2f} times "
            "the CPU time of the measurement"
        )
    change = drift((forward + backward).sum(axis=1))
    if abs(change) > _DRIFTING:
        word = "slower" if change > 0 else "faster"
        notes.append(f"later repetitions were {abs(change):.0%} {word} than the first")
    return tuple(notes)
