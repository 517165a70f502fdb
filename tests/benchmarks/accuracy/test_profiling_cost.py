"""What profiling costs: a 12-layer GPT in steps of its own, all in CPU time of the process.

Tracing is left out. The step is one of training: forward, loss, backward and AdamW.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import pytest
import torch

from autosplit import profilers
from autosplit.modelspec import load_model
from autosplit.tracers import trace
from autosplit.types import ModelRef
from tests.benchmarks.accuracy.subjects import ROOT
from tests.benchmarks.accuracy.tables import show

MODEL = """
from sample_models.gpt import batches, build as _build, example_inputs, loss


def build():
    return _build(width=256, heads=8, layers=12, dropout=0.0)
"""
ROWS = 8
STEPS = 7
LIMIT = 8.0

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_profiling_costs_a_few_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    file = tmp_path / "gpt_12.py"
    file.write_text(MODEL)
    ref = ModelRef(f"{file}:build", batch_size=ROWS)
    torch.set_num_threads(1)
    loaded = load_model(ref)
    traced = trace(loaded)
    step_s = statistics.median(_step_seconds(loaded))
    rows = []
    for text, options in {
        "default": profilers.ProfileOptions(device="cpu"),
        "at least 3 repetitions": profilers.ProfileOptions(device="cpu", min_repetitions=3),
    }.items():
        counted = [0]

        def count(done: int, total: int, what: str, counted: list[int] = counted) -> None:
            counted[0] = max(counted[0], done)

        begin = time.process_time()
        profilers.profile(traced, options, count, model=ref)
        ratio = (time.process_time() - begin) / step_s
        rows.append((text, str(counted[0]), f"{step_s * 1e3:.0f} ms", f"{ratio:.1f}"))
    columns = ("options", "repetitions", "a step", f"profiling / step (≤ {LIMIT:g})")
    show("What profiling a 12-layer GPT costs", columns, rows)


def _step_seconds(loaded) -> list[float]:
    from sample_models.gpt import batches, loss

    optimizer = torch.optim.AdamW(loaded.model.parameters())
    seconds = []
    for (ids,), (targets,) in (next(batches(ROWS)) for _ in range(STEPS)):
        begin = time.process_time()
        optimizer.zero_grad()
        loss(loaded.model(ids), targets).backward()
        optimizer.step()
        seconds.append(time.process_time() - begin)
    optimizer.zero_grad()
    return seconds[1:]
