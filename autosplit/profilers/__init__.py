"""Profilers: a trace to a profile. One file each way of knowing what a layer costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autosplit.errors import DataError
from autosplit.journal import Journal
from autosplit.profilers.base import PROFILERS, ProfileOptions, Profiler, Progress
from autosplit.types import ModelRef, Profile

if TYPE_CHECKING:
    from autosplit.layers import Grouping
    from autosplit.tracers.base import Trace

__all__ = ["PROFILERS", "ProfileOptions", "Profiler", "Progress", "profile"]


def profile(
    trace: Trace,
    options: ProfileOptions | None = None,
    progress: Progress | None = None,
    *,
    model: ModelRef | None = None,
    journal: Journal | None = None,
    grouping: Grouping | None = None,
) -> Profile:
    """Measure a traced model layer by layer.

    Parameters
    ----------
    trace
        The model and what its forward does.
    options
        What is measured, where and how precisely.
    progress
        Called with steps done, steps in all as far as known, and what is being done.
    model
        How to build the model again; by default its class.
    journal
        Results of a run of the same kind that was cut short; those of this one are added.
    grouping
        The layers; by default those of the program at its example sizes.

    Returns
    -------
    Profile
        Time and memory of each layer. The model is left as it was. Of a model on meta one layer
        of each structure is measured, with made-up values.

    Raises
    ------
    DataError
        If the model computes nothing.
    """
    from autosplit.layers import group
    from autosplit.modelspec.meta import is_on_meta
    from autosplit.profilers import analytic, measured, representatives  # noqa: F401 - file themselves
    from autosplit.profilers.summary import summarise

    kind = type(trace.model)
    ref = model or ModelRef(spec=f"{kind.__module__}:{kind.__qualname__}")
    chosen = options or ProfileOptions()
    layers = grouping or group(trace.program, granularity=chosen.granularity)
    if not layers.layers:
        raise DataError("the model computes nothing that could be planned")
    measuring = "representatives" if is_on_meta(trace.model) else "measured"
    profiler = PROFILERS["analytic" if chosen.analytic else measuring]()
    report = progress or (lambda done, total, what: None)
    kept = Journal() if journal is None else journal
    findings = profiler.findings(trace, layers, chosen, report, kept)
    return summarise(trace.program, layers, findings, model=ref, training=not chosen.inference)
