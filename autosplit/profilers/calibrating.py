"""Time exported code in turn with the layers it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from autosplit.journal import Journal
from autosplit.layers import Grouping
from autosplit.profilers.base import ProfileOptions, Progress
from autosplit.profilers.exported import StageChain, StageCode, load_stage
from autosplit.profilers.measured import opened, whole_model
from autosplit.profilers.session import Repetition, SampleSet
from autosplit.profilers.statistics import classes_of, timings
from autosplit.tracers.base import Trace
from autosplit.types import Timing, WholeModel


@dataclass(frozen=True)
class Round:
    """One repetition: all layers and the whole, then forward and backward of each stage."""

    layers: Repetition
    forward: tuple[float, ...]
    backward: tuple[float, ...]


@dataclass(frozen=True)
class Comparison:
    """What layers and stages took in the same repetitions, in the order of both.

    Parameters
    ----------
    forward, backward
        Of the layers.
    whole
        The whole step.
    stage_forward_s, stage_backward_s
        Of the exported code of the stages.
    """

    forward: list[Timing]
    backward: list[Timing]
    whole: WholeModel
    stage_forward_s: list[float]
    stage_backward_s: list[float]


def compare(
    trace: Trace,
    grouping: Grouping,
    codes: Sequence[StageCode],
    options: ProfileOptions,
    progress: Progress,
    journal: Journal,
) -> Comparison:
    """Run layers and exported stages in turn, as often as layers are timed at least.

    What ``journal`` holds is not run again; what is run is added to it.

    Raises
    ------
    OutOfMemoryError
        If the device does not hold a step of the model.
    AutosplitError
        If the code of a stage does not run.
    """
    least = options.min_repetitions
    with opened(trace, grouping, options) as setting:
        session = setting.session
        stages = [
            (_compiled(load_stage(code, trace.model, setting.state), options), code)
            for code in codes
        ]
        outputs = trace.program.outputs
        chain = StageChain(stages, setting.inputs, not options.inference, outputs)
        rounds = journal.records(Round)
        session.lead()
        chain.run(setting.clock)
        while len(rounds) < least:
            progress(len(rounds), least, "exported code")
            layers = session.repetition()
            forward, backward = chain.run(setting.clock)
            rounds.append(Round(layers, tuple(forward), tuple(backward)))
            journal.append(rounds[-1])
        samples = SampleSet([each.layers for each in rounds])
        classes = classes_of(session.keys())
    return Comparison(
        forward=timings(samples.forward, classes),
        backward=timings(samples.backward, classes),
        whole=whole_model(samples, classes),
        stage_forward_s=np.median([each.forward for each in rounds], axis=0).tolist(),
        stage_backward_s=np.median([each.backward for each in rounds], axis=0).tolist(),
    )


def _compiled(stage: torch.nn.Module, options: ProfileOptions) -> torch.nn.Module:
    """Compile a stage where layers are compiled, so that like is compared with like."""
    if options.compile:
        stage.compile(dynamic=False)
    return stage
