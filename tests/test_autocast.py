"""A model run under autocast: profiled, cut and exported as it is run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from autosplit import workflow
from autosplit.errors import UsageError
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions
from autosplit.tracers import trace
from autosplit.types import ModelRef, PlanRequest

SPEC = f"{Path(__file__).resolve().parents[1] / 'sample_models' / 'mlp.py'}:build"
REF = ModelRef(spec=SPEC, autocast="bfloat16")

pytestmark = pytest.mark.timeout(120)


def test_every_operation_is_recorded_under_autocast() -> None:
    program = trace(load_model(REF)).program
    assert {node.ambient.autocast for node in program.operations} == {(("cpu", "bfloat16"),)}
    plain = trace(load_model(ModelRef(spec=SPEC))).program
    assert {state.dtype for state in program.states} == {state.dtype for state in plain.states}


def test_what_is_sent_between_stages_is_half_as_wide() -> None:
    options = ProfileOptions(analytic="a100-80gb")
    cast = workflow.profile(REF, options)
    plain = workflow.profile(SPEC, options)
    widths = [{v.name: v.nbytes for v in p.values if v.producer} for p in (cast, plain)]
    linear = [name for name in widths[0] if name.endswith("linear")]
    assert linear
    assert all(2 * widths[0][name] == widths[1][name] for name in linear)


def test_stages_run_under_autocast(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    workflow.save(workflow.profile(REF, ProfileOptions(analytic="a100-80gb")), path)
    found = workflow.plan(path, PlanRequest(stages=2, microbatches=2))
    workflow.export(found, tmp_path / "pipeline")
    text = (tmp_path / "pipeline" / "stages" / "stage_0.py").read_text()
    assert text.count("torch.autocast") == 1
    report = workflow.verify(tmp_path / "pipeline")
    for check in report.checks:
        assert all(comparison.largest == 0.0 for comparison in check.comparisons)


def test_what_is_no_floating_point_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="'int8' is no floating-point dtype"):
        load_model(ModelRef(spec=SPEC, autocast="int8"))


def test_short_names_of_dtypes_are_taken() -> None:
    parameters = load_model(ModelRef(spec=SPEC, dtype="bf16")).model.parameters()
    assert {each.dtype for each in parameters} == {torch.bfloat16}
