"""Every model at every number of stages, under every schedule, trains as the unsplit model does.

The models are those of ``sample_models``, and the hard cases beside the repository where they
are there. By default each has one number of stages; ``-m slow`` runs the others.
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
STAGES = (2, 3, 4)
TOLERANCE = 1e-5


def _matrix() -> Iterator[Any]:
    models = [(name, walk.sample(name)) for name in walk.SAMPLES]
    models += [(path.stem, ModelRef(f"{path}:build")) for path in CASES]
    for number, (name, ref) in enumerate(models):
        for stages in STAGES:
            marks = () if stages == STAGES[number % 3] else (pytest.mark.slow,)
            yield pytest.param(ref, stages, id=f"{name}-{stages}", marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ref", "stages"), list(_matrix()))
def test_the_pipeline_trains_as_the_model(ref: ModelRef, stages: int, tmp_path: Path) -> None:
    folder = walk.exported(ref, stages, tmp_path)
    report = verify(folder)
    walk.assert_equal(report.comparisons, TOLERANCE)
    assert report.checkpoint.compared > 0
    assert report.checkpoint.largest == 0.0
    checks = walk.train_in_processes(folder)
    assert [check.schedule for check in checks] == list(walk.SCHEDULES)
    for check in checks:
        assert [each.kind for each in check.comparisons] == ["loss", "gradients", "buffers"]
        assert check.comparisons[1].compared > 0
        walk.assert_equal(check.comparisons, TOLERANCE)


def test_a_branch_on_values_is_refused(cases_dir: Path) -> None:
    source = cases_dir / "09_shape_control_flow.py"
    lines = source.read_text().splitlines()
    branch = next(number for number, line in enumerate(lines, 1) if "float(x.detach()" in line)
    found = CliRunner().invoke(cli, ["profile", f"{source}:build_data_dependent"])
    assert found.exit_code == ExitCode.TRACE
    assert f"{source}:{branch}" in found.stderr
    assert "hint:" in found.stderr
    assert "Traceback" not in found.stderr
