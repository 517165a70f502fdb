"""The walk from a model to its export, as quick as a test needs it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from autosplit import workflow
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions
from autosplit.types import BatchCheck, Comparison, ModelRef, PlanRequest, Profile
from autosplit.verification.distributed import Step, check_processes
from autosplit.verification.folder import read_export
from autosplit.verification.reference import micro_batches

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ("gpt", "mlp", "resnet", "unet", "encoder_decoder", "moe")
SCHEDULES = ("gpipe", "1f1b")

_QUICK = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)


@functools.lru_cache(maxsize=1)
def measured(ref: ModelRef) -> Profile:
    """Return the profile of a model; the last one is kept for the next stage count."""
    return workflow.profile(ref, _QUICK)


def sample(name: str) -> ModelRef:
    """Return the spec of a sample model."""
    return ModelRef(f"{ROOT / 'sample_models' / name}.py:build", batch_size=3)


def exported(ref: ModelRef, stages: int, folder: Path) -> Path:
    """Profile, plan and export a model; return the export."""
    plan = workflow.plan(measured(ref), PlanRequest(stages=stages, microbatches=4))
    workflow.export(plan, folder / "pipeline")
    return folder / "pipeline"


def train_in_processes(folder: Path, schedules: Sequence[str] = SCHEDULES) -> list[BatchCheck]:
    """Run one training step under each schedule, all in one launch of torchrun."""
    export = read_export(folder)
    loaded = load_model(export.plan.model)
    rows = dict(export.routing.symbols).get("batch")
    batches = micro_batches(loaded, rows, len(export.stages) + 1)
    return check_processes(
        export, loaded, [Step("train", schedule, rows, batches) for schedule in schedules]
    )


def assert_equal(comparisons: Sequence[Comparison], tolerance: float) -> None:
    """Fail with every comparison that does not pass."""
    failed = [replace(each, faults=each.faults[:3]) for each in comparisons]
    failed = [each for each in failed if not each.passes(tolerance)]
    if failed:
        raise AssertionError("\n".join(map(repr, failed)))
