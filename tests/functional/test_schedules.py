"""Every schedule of an export trains and infers as the unsplit model does.

Each model is exported for ranks in a loop and in a V, and each export runs under every schedule
that its ranks fit. The traps are models on which torch's own split of a backward loses
gradients, falsifies them or fails.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from autosplit import workflow
from autosplit.modelspec import load_model
from autosplit.types import ModelRef, PlanRequest
from autosplit.verification import verify
from tests.functional import walk
from tests.functional.processes import run

LOOP = {"looped-bfs", "interleaved", "zero-bubble"}
V = {"zbv", "dualpipev"}
TOLERANCE = 1e-6
TRAPS = Path(__file__).with_name("traps.py")
HARD = TRAPS.with_name("hard_models.py")
DEEP = TRAPS.with_name("deep_model.py")


def exported(
    ref: ModelRef, folder: Path, schedule: str, *, ranks: int, stages: int, microbatches: int = 4
) -> Path:
    """Plan for a schedule and export."""
    request = PlanRequest(stages=stages, ranks=ranks, microbatches=microbatches, schedule=schedule)
    workflow.export(workflow.plan(walk.measured(ref), request), folder / schedule)
    return folder / schedule


def check(folder: Path, expected: set[str], tolerance: float = TOLERANCE) -> None:
    """Verify an export under every schedule of its ranks."""
    report = verify(folder, distributed=True, schedules=["all"], batch_sizes=(3,))
    assert {check.schedule for check in report.checks} == {None, *expected}
    modes = {check.mode for check in report.checks}
    assert "train" in modes
    walk.assert_equal(report.comparisons, tolerance)


@pytest.mark.timeout(240)
def test_a_frozen_first_stage_trains_under_each_v(tmp_path: Path) -> None:
    ref = ModelRef(f"{TRAPS}:frozen_start")
    check(exported(ref, tmp_path, "zbv", ranks=2, stages=4), V)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", ["zero-bubble", "zbv"])
@pytest.mark.parametrize(
    "name", ["frozen_start", "used_twice", "merged", "transposed", "saved_output"]
)
def test_traps_of_a_split_backward(name: str, schedule: str, tmp_path: Path) -> None:
    ref = ModelRef(f"{TRAPS}:{name}")
    folder = exported(ref, tmp_path, schedule, ranks=2, stages=4)
    check(folder, LOOP if schedule in LOOP else V)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", ["zero-bubble", "zbv"])
@pytest.mark.parametrize("name", ["gpt", "encoder_decoder", "resnet", "moe"])
def test_samples_under_every_schedule(name: str, schedule: str, tmp_path: Path) -> None:
    folder = exported(walk.sample(name), tmp_path, schedule, ranks=2, stages=4)
    check(folder, LOOP if schedule in LOOP else V, 1e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("schedule", ["zero-bubble", "zbv"])
@pytest.mark.parametrize("name", ["precision", "branches", "counters", "library"])
def test_hard_models_under_every_schedule(name: str, schedule: str, tmp_path: Path) -> None:
    folder = exported(ModelRef(f"{HARD}:{name}"), tmp_path, schedule, ranks=2, stages=4)
    check(folder, LOOP if schedule in LOOP else V, 1e-5)


# ---------------------------------------------------------------- four processes, five steps

ONE_STAGE = ("gpipe", "1f1b")
STEPS, MICROBATCHES, ROWS = 5, 8, 16


def losses_of_one_process(ref: ModelRef) -> list[float]:
    """Train the model as it is, with the optimizer and the batches of the export."""
    loaded = load_model(ref)
    assert loaded.batches is not None
    assert loaded.loss is not None
    model = loaded.model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    torch.manual_seed(0)
    batches = iter(loaded.batches(ROWS))
    found = []
    for _ in range(STEPS):
        (x,), (target,) = next(batches)
        optimizer.zero_grad()
        total = 0.0
        for part, wanted in zip(x.chunk(MICROBATCHES), target.chunk(MICROBATCHES), strict=True):
            loss = loaded.loss(model(part), wanted) / MICROBATCHES
            loss.backward()
            total += loss.item()
        optimizer.step()
        found.append(total)
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_four_processes_lose_what_one_does_under_each_schedule(tmp_path: Path) -> None:
    ref = ModelRef(f"{DEEP}:build", batch_size=ROWS // MICROBATCHES)
    expected = losses_of_one_process(ref)
    for planned in ("1f1b", "zero-bubble", "zbv"):
        stages = 4 if planned in ONE_STAGE else 8
        folder = exported(ref, tmp_path, planned, ranks=4, stages=stages, microbatches=MICROBATCHES)
        names = {"1f1b": ONE_STAGE, "zero-bubble": sorted(LOOP), "zbv": sorted(V)}[planned]
        for schedule in names:
            report = tmp_path / f"{schedule}.json"
            options = ["--schedule", schedule, "--steps", str(STEPS), "--report", str(report)]
            run(["./launch.sh", "train.py", *options], folder=folder)
            losses = json.loads(report.read_text())["losses"]
            assert losses == pytest.approx(expected, rel=1e-6), schedule
