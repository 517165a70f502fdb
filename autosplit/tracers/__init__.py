"""Tracers: a live model to a ``Trace``. One file each, filed in ``TRACERS``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Iterator

from autosplit.errors import TraceError
from autosplit.modelspec import LoadedModel
from autosplit.tracers import exported, torch_level  # noqa: F401 - they file themselves
from autosplit.tracers.base import TRACERS, Trace
from autosplit.tracers.check import check
from autosplit.tracers.frames import failure
from autosplit.tracers.refusals import ModelError

__all__ = ["TRACERS", "Trace", "trace"]

_ORDER = ("torch_level", "torch_level_static", "exported")


def trace(loaded: LoadedModel, tracer: str = "auto") -> Trace:
    """Trace a model and compare the trace with the model on the example inputs.

    Parameters
    ----------
    tracer
        A name in ``TRACERS``; "auto" tries them from the most to the least readable result and
        says in ``Program.warnings`` why an earlier one was given up.

    Raises
    ------
    TraceError
        If no tracer gives a trace that computes what the model computes.
    """
    failures: list[tuple[str, TraceError]] = []
    for name in _ORDER if tracer == "auto" else (tracer,):
        try:
            with _quiet():
                found = TRACERS[name](loaded)
                check(found)
        except ModelError:
            raise
        except TraceError as error:
            failures.append((name, error))
            continue
        except NotImplementedError as error:
            # Tensors and modules that do not allow what every tensor and module allows.
            failures.append((name, failure(error, "the forward cannot be traced")))
            continue
        return _with_warnings(found, failures)
    raise failures[0][1]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from logging the stack of a call that fails on fake tensors: we tell of it.

    And from warning of sizes in a graph, which are written out as expressions.
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Raw Sym", UserWarning)
            yield
    finally:
        logger.disabled = before


def _with_warnings(trace: Trace, failures: list[tuple[str, TraceError]]) -> Trace:
    notes = tuple(
        f"tracer {name} was given up: {error.message}"
        + (f" ({error.cause})" if error.cause else "")
        for name, error in failures
    )
    told = (*trace.program.warnings, *notes)
    return dataclasses.replace(trace, program=dataclasses.replace(trace.program, warnings=told))
