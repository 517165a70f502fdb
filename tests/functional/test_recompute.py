"""What a plan recomputes stands in the export, and training follows it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from autosplit import workflow
from autosplit.modelspec import load_model
from autosplit.targets.templates.torch.pipeline import read_routing
from autosplit.targets.templates.torch.pipeline.training import modules_to_recompute
from autosplit.tracers import trace
from autosplit.types import ModelRef
from tests.codegen.chain import ROOT
from tests.functional.exports import even_plan


def test_a_plan_names_the_modules_of_its_layers(tmp_path: Path):
    ref = ModelRef(f"{ROOT / 'sample_models' / 'gpt.py'}:build", batch_size=2)
    plan = even_plan(ref, trace(load_model(ref)).program, 2)
    first, second = plan.stages
    again = tuple(name for name in first.layers if name.startswith("blocks.1."))
    stages = (dataclasses.replace(first, recompute=again), second)
    files = workflow.render(dataclasses.replace(plan, stages=stages))
    text = {each.path: each.text for each in files}["routing.json"]
    assert again
    assert json.loads(text)["run"]["recompute"] == [["blocks.1"], []]
    (tmp_path / "routing.json").write_text(text)
    routing = read_routing(tmp_path / "routing.json")
    assert modules_to_recompute("plan", routing) == {0: ("blocks.1",), 1: ()}
    assert modules_to_recompute("none", routing) == {}
    assert modules_to_recompute("all", routing) == {0: ("",), 1: ("",)}
