"""A model profiled without memory for its weights: planned, and exported where it fits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from autosplit import workflow
from autosplit.cli.main import cli
from autosplit.errors import AutosplitError
from autosplit.modelspec import meta
from autosplit.types import Plan, PlanRequest
from tests.functional import walk

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def plan() -> Plan:
    profile = walk.measured(replace(walk.sample("mlp"), on_meta=True))
    return workflow.plan(profile, PlanRequest(stages=2, microbatches=2))


def test_what_was_profiled_on_meta_is_exported_with_weights(plan: Plan, tmp_path: Path) -> None:
    workflow.export(plan, tmp_path / "pipeline")
    assert workflow.verify(tmp_path / "pipeline").passed
    assert not workflow.stale(plan, tmp_path / "pipeline")


def test_an_export_that_does_not_fit_is_refused_with_both_sizes(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta, "free_bytes", lambda: 1024)
    with pytest.raises(AutosplitError, match="does not fit") as raised:
        workflow.export(plan, tmp_path / "pipeline")
    assert raised.value.cause is not None
    assert "1.00 KiB are free" in raised.value.cause
    assert not list(tmp_path.iterdir())
    assert any(artifact.path.endswith("stage_0.py") for artifact in workflow.render(plan))


def test_the_command_line_builds_on_meta(tmp_path: Path) -> None:
    spec, output = walk.sample("mlp").spec, tmp_path / "profile.json"
    arguments = ["profile", spec, "--on-meta", "--repetitions", "2", "-o", str(output), "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    assert json.loads(output.read_text())["model"]["on_meta"] is True
