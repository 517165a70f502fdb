"""Profiling in a process that can be killed, and that starts with everything loaded."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import autosplit.layers
import autosplit.profilers.measured
import autosplit.profilers.representatives
import autosplit.profilers.sweep  # noqa: F401 - the server of forks has all that a run needs
from autosplit import workflow
from autosplit.profilers import ProfileOptions
from autosplit.types import ModelRef

_LONGEST_S = 240.0


def profiled(
    ref: ModelRef, options: ProfileOptions, sizes: Mapping[str, Sequence[int]], output: Path
) -> None:
    """Profile as ``autosplit profile`` does, but leave the journal where it is."""
    partial = journal_of(output)
    found = (
        workflow.sweep(ref, sizes, options, partial=partial)
        if sizes
        else workflow.profile(ref, options, partial=partial)
    )
    workflow.save(found, output)


def journal_of(output: Path) -> Path:
    """Return the file in which results are kept until the output is written."""
    return output.with_name(f"{output.name}.partial")


def lines_of(partial: Path) -> list[dict[str, Any]]:
    """Return the whole records of a journal, its head left out."""
    content = partial.read_bytes() if partial.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()[1:]]


def begun(*arguments: Any) -> BaseProcess:
    """Start ``profiled`` in a process of its own, forked from one that has torch loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=profiled, args=arguments, daemon=True)
    process.start()
    return process


def finished(process: BaseProcess) -> None:
    """Wait for a run, which must end well."""
    process.join(_LONGEST_S)
    assert process.exitcode == 0, "the run failed, or did not end"


def killed(process: BaseProcess, partial: Path, lines: int, later_s: float) -> None:
    """Kill a run a moment after its journal has some lines; one that ended first is let be."""
    deadline = time.monotonic() + _LONGEST_S
    while process.is_alive() and len(lines_of(partial)) < lines:
        assert time.monotonic() < deadline, "no results came"
        time.sleep(0.002)
    time.sleep(later_s)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9), "the run failed by itself"
