"""Measure a model that fits on the device: all of its layers, in running order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autosplit.errors import DataError
from autosplit.journal import Journal
from autosplit.layers import Work, group
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.base import PROFILERS, ProfileOptions, Progress
from autosplit.profilers.environment import (
    choose_device,
    describe,
    input_tensors,
    out_of_memory_explained,
    prepared,
    state_tensors,
)
from autosplit.profilers.passes import Compute, Piece, Step
from autosplit.profilers.session import SampleSet, Session, choose_clock, trained
from autosplit.profilers.statistics import Classes, classes_of, timings
from autosplit.profilers.summary import Findings, summarise
from autosplit.profilers.whole import WholeStep
from autosplit.serialize import digest
from autosplit.tracers.base import Trace
from autosplit.tracers.replay import compile_nodes
from autosplit.types import ModelRef, Profile, WholeModel

_LARGEST_OFFSET = 3.0
"""Most that entering a layer is taken to cost, in empty layers."""


@PROFILERS.register("measured")
class MeasuredProfiler:
    """Times layers on detached inputs in running order, and the whole step beside them."""

    def profile(
        self,
        trace: Trace,
        options: ProfileOptions,
        model: ModelRef,
        progress: Progress,
        journal: Journal,
    ) -> Profile:
        """Return time and memory of every layer of ``trace``.

        Raises
        ------
        DataError
            If the model computes nothing.
        """
        program = trace.program
        grouping = group(program, granularity=options.granularity)
        if not grouping.layers:
            raise DataError("the model computes nothing that could be planned")
        device = choose_device(options.device)
        clock = choose_clock(device, options.threads)
        training = not options.inference

        def compiled(names: Sequence[str]) -> Compute:
            return compile_nodes(
                trace,
                names,
                state={name: state[name] for name in trace.constants},
                device=device if device.type != "cpu" else None,
                training=None if training else False,
                readers=grouping.layer_of,
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
            step = Step(pieces, inputs, frozenset(program.outputs), training)
            live = sorted(grouping.layer_of, key=program.position.__getitem__)
            whole = WholeStep(compiled(live), inputs, training)
            session = Session(step, state.values(), whole, device, clock, options)
            with out_of_memory_explained(
                device, lambda: f"a step of the model, at layer {step.running}"
            ):
                findings = _findings(session, Work(program), options, progress, journal)
        return summarise(
            program,
            grouping,
            findings,
            model=model,
            fingerprint=digest(program),
            device=describe(device, options.threads, clock),
            training=training,
        )


def _findings(
    session: Session,
    work: Work,
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
    return Findings(
        forward=timings(np.array(samples.forward), classes),
        backward=timings(np.array(samples.backward), classes),
        saved=[tuple(keys) for keys in saved.saved],
        value_storage=dict(saved.value_storage),
        storage_bytes={key: saved.storage_bytes(key) for keys in saved.saved for key in keys},
        workspace_bytes=workspace,
        flops=[work.layer_flops(piece.layer.nodes) for piece in session.step.pieces],
        returned=frozenset(session.step.returned),
        whole=_whole_model(samples, classes),
        notes=samples.notes(classes, options),
    )


def _whole_model(samples: SampleSet, classes: Classes) -> WholeModel:
    """Compare the sum over layers with the whole and spread the difference over the layers.

    What a layer pays for being entered alone is at least nothing and hardly more than a few
    times an empty layer: a larger difference has other reasons.
    """
    forward_s, backward_s = (float(value) for value in np.median(samples.whole, axis=0))
    directions = (np.array(samples.forward), np.array(samples.backward))
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
    )
