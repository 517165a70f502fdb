"""A profile against the code that is exported: what runs in the end, timed beside its layers."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from autosplit import graph
from autosplit.cost.times import LayerTimes
from autosplit.errors import AutosplitError, UsageError
from autosplit.types import Calibration, GroupTimes, ModelRef, Profile, StructureFactor

if TYPE_CHECKING:
    from autosplit.journal import Journal
    from autosplit.profilers import ProfileOptions
    from autosplit.profilers.calibrating import Comparison
    from autosplit.profilers.exported import StageCode
    from autosplit.program import Program
    from autosplit.tracers import Trace

_GROUPS = 4
"""Stages of about equal time whose code is timed."""


def refuse_uncalibrated(ref: ModelRef, options: ProfileOptions) -> None:
    """Refuse to calibrate what is not measured whole.

    Raises
    ------
    UsageError
        For a modelled device, and for a model without memory for its weights.
    """
    if not options.calibrate:
        return
    if options.analytic is not None:
        raise UsageError(
            "--calibrate goes with measured times",
            hint="leave out --analytic, or calibrate it with autosplit device fit",
        )
    if ref.on_meta:
        raise UsageError(
            "--calibrate runs the whole model, and --on-meta builds it without weights",
            hint="calibrate a model of fewer layers, or leave out one of the two",
        )


def calibrated(
    profile: Profile,
    trace: Trace,
    options: ProfileOptions,
    progress: Callable[[int, int, str], None] | None,
    journal: Journal,
) -> Profile:
    """Return a profile that knows how exported code of its layers runs.

    The model is cut into a few stages of about equal time. Their code is written as ``export``
    does, run in this process in turn with the layers, and compared with what the layers promise.
    A model that cannot be cut or run so keeps its profile, with a remark.
    """
    from autosplit.layers import group
    from autosplit.profilers import calibrating
    from autosplit.profilers.resizing import resized

    trace = resized(trace, dict(profile.sizes))
    grouping = group(trace.program, granularity=options.granularity)
    groups = equal_groups(profile, _GROUPS)
    report = progress or (lambda done, total, what: None)
    try:
        codes = _codes(trace.program, profile, groups)
        found = calibrating.compare(
            trace, grouping, codes, options, report, journal.part("calibration")
        )
    except AutosplitError as error:
        cause = f" ({error.cause})" if error.cause else ""
        note = f"not calibrated: {error.message}{cause}"
        return dataclasses.replace(profile, notes=(*profile.notes, note))
    return dataclasses.replace(profile, calibration=_calibration(profile, groups, found))


def equal_groups(profile: Profile, count: int) -> tuple[tuple[str, ...], ...]:
    """Return the layers as at most ``count`` runs of about equal time, none of them empty."""
    seconds = [layer.forward.median_s + layer.backward.median_s for layer in profile.layers]
    total = math.fsum(seconds) or 1.0
    groups: dict[int, list[str]] = defaultdict(list)
    done = 0.0
    for layer, each in zip(profile.layers, seconds, strict=True):
        groups[min(count - 1, int(count * (done + each / 2) / total))].append(layer.name)
        done += each
    return tuple(tuple(groups[place]) for place in sorted(groups))


def _codes(
    program: Program, profile: Profile, groups: Sequence[Sequence[str]]
) -> tuple[StageCode, ...]:
    """Return the groups as exported code."""
    from autosplit import codegen, stages
    from autosplit.profilers.exported import StageCode

    stage_of = {
        node: stage
        for stage, names in enumerate(groups)
        for name in names
        for node in profile.layer[name].nodes
    }
    specs, _ = stages.split(program, stage_of, len(groups))
    return tuple(
        StageCode(f"Stage{spec.index}", source.text, spec.take, spec.give, frozenset(spec.clone))
        for spec, source in zip(specs, codegen.generate(program, specs), strict=True)
    )


def _calibration(
    profile: Profile, groups: Sequence[tuple[str, ...]], found: Comparison
) -> Calibration:
    """Return the groups as they ran, and what follows for each structure.

    A structure has the mean ratio of the groups it stands in, weighted by its time there.
    """
    times = LayerTimes(graph.build(_as_compared(profile, found)))
    index = times.graph.index
    entry_forward_s, entry_backward_s = times.entry_s
    timed: list[GroupTimes] = []
    forward, backward = _Means(), _Means()
    for stage, names in enumerate(groups):
        places = [index[name] for name in names]
        group = GroupTimes(
            layers=names,
            predicted_forward_s=math.fsum(times.forward_s[i] for i in places) + entry_forward_s,
            predicted_backward_s=math.fsum(times.backward_s[i] for i in places) + entry_backward_s,
            forward_s=found.stage_forward_s[stage],
            backward_s=found.stage_backward_s[stage],
        )
        timed.append(group)
        for place, name in zip(places, names, strict=True):
            structure = profile.layer[name].structure
            forward.add(
                structure, times.forward_s[place], group.forward_s, group.predicted_forward_s
            )
            backward.add(
                structure, times.backward_s[place], group.backward_s, group.predicted_backward_s
            )
    structures = dict.fromkeys(layer.structure for layer in profile.layers)
    return Calibration(
        tuple(timed),
        tuple(StructureFactor(each, forward.of(each), backward.of(each)) for each in structures),
    )


def _as_compared(profile: Profile, found: Comparison) -> Profile:
    """Return the profile with the times that its layers took beside the exported code."""
    layers = tuple(
        dataclasses.replace(layer, forward=forward, backward=backward, weight_gradient_s=0.0)
        for layer, forward, backward in zip(
            profile.layers, found.forward, found.backward, strict=True
        )
    )
    return dataclasses.replace(profile, layers=layers, whole=found.whole, calibration=None)


class _Means:
    """Mean ratios of structures, weighted by seconds."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, structure: str, weight_s: float, real_s: float, predicted_s: float) -> None:
        if predicted_s > 0 and real_s > 0:
            weight, total = self._sums.get(structure, (0.0, 0.0))
            ratio = real_s / predicted_s
            self._sums[structure] = (weight + weight_s, total + weight_s * ratio)

    def of(self, structure: str) -> float:
        weight, total = self._sums.get(structure, (0.0, 0.0))
        return total / weight if weight > 0 else 1.0
