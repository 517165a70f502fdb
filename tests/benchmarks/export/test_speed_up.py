"""Two processes with one thread each against the original model in one. Asserts no times.

Both train the same batches in the same micro-batches, in turns, so that a machine that slows down
slows both. A pipeline of S equal stages cannot be faster than ``S * M / (M + S - 1)`` times.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from tests.functional import processes

MODEL = "sample_models/gpt.py:build_large"
ROWS, STAGES, STEPS, ROUNDS = 8, 2, 6, 3
WARM_UP = 2

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


def step_s(report: Path, *command: str) -> list[float]:
    """Train, and return the seconds of the steps after the first ones."""
    processes.run(
        [*command, "--steps", str(STEPS), "--report", str(report)],
        limit_s=600,
        folder=processes.ROOT,
    )
    record = json.loads(report.read_text())
    return [float(seconds) for seconds in record["step_s"][WARM_UP:]]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("speed") / "profile.json"
    autosplit("profile", MODEL, "--batch-size", str(ROWS), "-o", str(path))
    return path


def autosplit(*arguments: str) -> None:
    processes.run([sys.executable, "-m", "autosplit", *arguments], folder=processes.ROOT)


@pytest.mark.parametrize("microbatches", [8, 16])
def test_speed_up(profile: Path, microbatches: int) -> None:
    folder = profile.parent
    plan, pipeline = folder / f"plan-{microbatches}.json", folder / f"pipeline-{microbatches}"
    numbers = ("--stages", str(STAGES), "--microbatches", str(microbatches))
    autosplit("plan", str(profile), *numbers, "-o", str(plan))
    autosplit("export", str(plan), "-o", str(pipeline))
    together: list[float] = []
    alone: list[float] = []
    for number in range(ROUNDS):
        report = folder / f"{microbatches}-{number}.json"
        together += step_s(report, f"{pipeline}/launch.sh", "train.py", "--threads", "1")
        sizes = ("--microbatch-size", str(ROWS), "--microbatches", str(microbatches))
        alone += step_s(report, sys.executable, "tools/train_alone.py", MODEL, *sizes)
    planned = json.loads(plan.read_text())
    single, pipelined = statistics.median(alone), statistics.median(together)
    limit = STAGES * microbatches / (microbatches + STAGES - 1)
    print("\n| M | one process, s | two, s | speed-up | of the limit | predicted |")
    print("|---|---|---|---|---|---|")
    print(
        f"| {microbatches} | {single:.3f} | {pipelined:.3f} | {single / pipelined:.2f}x "
        f"| {single / pipelined / limit:.2f} of {limit:.2f}x "
        f"| {planned['single_s'] / planned['step_s']:.2f}x |"
    )
