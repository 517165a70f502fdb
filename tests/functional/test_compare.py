"""Plans of real models against those people make by hand, on the same measured times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autosplit import workflow
from autosplit.types import ModelRef, PlanRequest
from tests.functional import walk

CASES = sorted((walk.ROOT.parent / "shared" / "cases").glob("[0-9]*.py"))


def _models() -> list[Any]:
    models = [(name, walk.sample(name)) for name in walk.SAMPLES]
    models += [(path.stem, ModelRef(f"{path}:build")) for path in CASES]
    return [pytest.param(ref, id=name) for name, ref in models]


@pytest.mark.slow
@pytest.mark.parametrize("ref", _models())
def test_no_baseline_is_ahead(ref: ModelRef) -> None:
    for stages in (2, 3, 4):
        for schedule in ("gpipe", "1f1b"):
            request = PlanRequest(stages, 8, schedule=schedule, link_bytes_per_s=1e9)
            found = workflow.plan(walk.measured(ref), request)
            for other in workflow.compare(walk.measured(ref), found.request):
                assert found.step_s <= other.step_s * (1 + 1e-9), other.name


@pytest.mark.skipif(not CASES, reason="the hard cases are not here")
def test_a_head_that_bounds_every_plan_is_named(tmp_path: Path) -> None:
    """A large vocabulary makes the head the longest stage whatever is done with the rest."""
    ref = ModelRef(f"{CASES[0].with_name('02_big_vocab_head.py')}:build")
    found = workflow.plan(walk.measured(ref), PlanRequest(4, 8))
    assert any("lm_head alone is" in note for note in found.notes)
