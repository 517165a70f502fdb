"""Every model at every number of stages, under every schedule, trains as the unsplit model does.

The models are those of ``sample_models``, small ones with a difficulty each, and the hard cases
beside the repository where they are there. What is not marked slow is one number of stages for
each model.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autosplit.cli.main import cli
from autosplit.errors import ExitCode
from autosplit.types import ModelRef
from autosplit.verification import verify
from tests.functional import walk

CASES = sorted((walk.ROOT.parent / "shared" / "cases").glob("[0-9]*.py"))
HARD = Path(__file__).with_name("hard_models.py")
HARD_MODELS = ("boundaries", "root_parameters", "precision", "branches", "counters", "library")
STAGES = (2, 3, 4)
TOLERANCE = 1e-5


def _matrix() -> Iterator[Any]:
    always = [(name, walk.sample(name)) for name in walk.SAMPLES]
    always += [(path.stem, ModelRef(f"{path}:build")) for path in CASES]
    hard = [(name, ModelRef(f"{HARD}:{name}")) for name in HARD_MODELS]
    for number, (name, ref) in enumerate(always + hard):
        for stages in STAGES:
            quick = number < len(always) and stages == STAGES[number % 3]
            marks = () if quick else (pytest.mark.slow,)
            yield pytest.param(ref, stages, id=f"{name}-{stages}", marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ref", "stages"), list(_matrix()))
def test_the_pipeline_trains_as_the_model(ref: ModelRef, stages: int, tmp_path: Path) -> None:
    folder = walk.exported(ref, stages, tmp_path)
    assert_verified(folder)
    checks = walk.train_in_processes(folder)
    assert [check.schedule for check in checks] == list(walk.SCHEDULES)
    for check in checks:
        assert [each.kind for each in check.comparisons] == ["loss", "gradients", "buffers"]
        assert check.comparisons[1].compared > 0
        walk.assert_equal(check.comparisons, TOLERANCE)


@pytest.mark.parametrize("name", HARD_MODELS)
def test_each_difficulty_in_one_process(name: str, tmp_path: Path) -> None:
    assert_verified(walk.exported(ModelRef(f"{HARD}:{name}"), 4, tmp_path))


def assert_verified(folder: Path) -> None:
    """Fail unless outputs, gradients, buffers and the merged checkpoint are the model's."""
    report = verify(folder)
    walk.assert_equal(report.comparisons, TOLERANCE)
    assert report.checkpoint.compared > 0
    assert report.checkpoint.largest == 0.0


def test_a_branch_on_values_is_refused(cases_dir: Path) -> None:
    source = (cases_dir / "09_shape_control_flow.py").resolve()
    lines = source.read_text().splitlines()
    branch = next(number for number, line in enumerate(lines, 1) if "float(x.detach()" in line)
    found = CliRunner().invoke(cli, ["profile", f"{source}:build_data_dependent"])
    assert found.exit_code == ExitCode.TRACE
    assert f"{source}:{branch}" in found.stderr
    assert "hint:" in found.stderr
    assert "Traceback" not in found.stderr
