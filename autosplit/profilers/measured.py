"""Measure a model that fits on the device: all of its layers, in running order."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autosplit.journal import Journal
from autosplit.layers import Grouping, Work
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.clocks import Clock
from autosplit.profilers.compiling import compiler
from autosplit.profilers.environment import (
    OutOfMemoryError,
    autocast_region,
    choose_device,
    describe,
    input_tensors,
    out_of_memory_explained,
    prepared,
    state_tensors,
)
from autosplit.profilers.passes import Compute, Piece, Step
from autosplit.profilers.quality import remarks
from autosplit.profilers.representatives import RepresentativeProfiler
from autosplit.profilers.session import SampleSet, Session, choose_clock, trained
from autosplit.profilers.statistics import Classes, classes_of, timings
from autosplit.profilers.summary import Findings
from autosplit.profilers.whole import WholeStep
from autosplit.tracers.base import Trace
from autosplit.tracers.replay import compile_nodes
from autosplit.types import DeviceInfo, WholeModel

_LARGEST_OFFSET = 3.0
"""Most that entering a layer is taken to cost, in empty layers."""


@PROFILERS.register("measured")
class MeasuredProfiler:
    """Times layers on detached inputs in running order, and the whole step beside them."""

    def findings(
        self,
        trace: Trace,
        grouping: Grouping,
        options: ProfileOptions,
        progress: Progress,
        journal: Journal,
    ) -> Findings:
        """Return time and memory of every layer of ``grouping``, at the sizes of ``trace``.

        A model of which the device does not hold a step is measured as one on meta is: one layer
        of each structure, a few at a time.
        """
        try:
            with opened(trace, grouping, options) as setting:
                info = describe(setting.device, options, setting.clock)
                return _findings(
                    setting.session, Work(trace.program), info, options, progress, journal
                )
        except OutOfMemoryError as error:
            found = RepresentativeProfiler().findings(trace, grouping, options, progress, journal)
            return dataclasses.replace(found, notes=(error.message, *found.notes))


@dataclass(frozen=True)
class Setting:
    """A model that is ready to be measured.

    Parameters
    ----------
    session
        Runs its layers.
    state, inputs
        Parameters, buffers, constants and model inputs by name.
    device, clock
        Where it runs, and what times it.
    """

    session: Session
    state: dict[str, Tensor]
    inputs: dict[str, Tensor]
    device: torch.device
    clock: Clock


@contextmanager
def opened(trace: Trace, grouping: Grouping, options: ProfileOptions) -> Iterator[Setting]:
    """Make all layers of a model runnable, and the whole; leave the model as it was.

    Raises
    ------
    OutOfMemoryError
        If the device does not hold what is run.
    """
    program = trace.program
    device = choose_device(options.device)
    clock = choose_clock(device, options.threads)
    training = not options.inference
    finish = compiler(options, device)

    def compiled(names: Sequence[str]) -> Compute:
        return finish(
            compile_nodes(
                trace,
                names,
                state={name: state[name] for name in trace.constants},
                device=device if device.type != "cpu" else None,
                training=None if training else False,
                readers=grouping.layer_of,
            )
        )

    with (
        out_of_memory_explained(device, lambda: "the model"),
        keep_freed_memory(),
        prepared(trace, device, threads=options.threads, inference=options.inference),
    ):
        state = state_tensors(trace, device)
        inputs = {name: tensor.to(device) for name, tensor in input_tensors(trace).items()}
        pieces = [
            Piece(layer, compiled(layer.nodes), trained(program.states_in(layer.nodes), state))
            for layer in grouping.layers
        ]
        region = autocast_region(program, device)
        step = Step(pieces, inputs, frozenset(program.outputs), training, region=region)
        live = sorted(grouping.layer_of, key=program.position.__getitem__)
        whole = WholeStep(compiled(live), inputs, training)
        session = Session(step, state.values(), whole, device, clock, options)
        with out_of_memory_explained(
            device, lambda: f"a step of the model, at layer {step.running}"
        ):
            yield Setting(session, state, inputs, device, clock)


def _findings(
    session: Session,
    work: Work,
    device: DeviceInfo,
    options: ProfileOptions,
    progress: Progress,
    journal: Journal,
) -> Findings:
    """Look at memory, then time."""
    least = options.min_repetitions
    progress(0, least, "warming up")
    saved = session.saved()
    workspace = session.workspace_bytes()
    samples = session.times(lambda done, what: progress(done, max(done, least), what), journal)
    classes = classes_of(session.keys())
    backward = timings(samples.backward, classes)
    pieces = session.step.pieces
    trains = [bool(piece.parameters) for piece in pieces]
    return Findings(
        device=device,
        forward=timings(samples.forward, classes),
        backward=backward,
        weight_gradient_s=samples.weight_gradient_s(backward, classes, trains),
        saved=[tuple(keys) for keys in saved.saved],
        value_storage=dict(saved.value_storage),
        storage_bytes={key: saved.storage_bytes(key) for keys in saved.saved for key in keys},
        workspace_bytes=workspace,
        flops=[work.layer_flops(piece.layer.nodes) for piece in pieces],
        returned=frozenset(session.step.returned),
        whole=whole_model(samples, classes),
        notes=remarks([samples.quality(classes)], options.precision),
        sources=["measured"] * len(pieces),
    )


def whole_model(samples: SampleSet, classes: Classes) -> WholeModel:
    """Compare the sum over layers with the whole and spread the difference over the layers.

    What a layer pays for being entered alone is at least nothing and hardly more than a few
    times an empty layer: a larger difference has other reasons.
    """
    forward_s, backward_s = (float(value) for value in np.median(samples.whole, axis=0))
    directions = (samples.forward, samples.backward)
    total = sum(timing.median_s for each in directions for timing in timings(each, classes))
    whole_s = forward_s + backward_s
    backwards = int(np.count_nonzero(directions[1].any(axis=0)))
    entered = backwards or directions[0].shape[1]
    empty_s = float(np.median(samples.empty)) if samples.empty else 0.0
    offset_s = (total - whole_s) / max(1, entered - 1)
    return WholeModel(
        forward_s=forward_s,
        backward_s=backward_s,
        ratio=total / whole_s if whole_s > 0 else 0.0,
        offset_s=min(max(0.0, offset_s), _LARGEST_OFFSET * empty_s),
        first_s=float(np.median(np.sum(samples.first, axis=1))) if samples.first else None,
    )
