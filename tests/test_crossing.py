"""What a plan says crosses a boundary is what the routing of its export sends there."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from autosplit import graph, planner
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, profile
from autosplit.profilers.flow import returned_values
from autosplit.stages import split
from autosplit.tracers import Trace, trace
from autosplit.types import ModelRef, PlanRequest
from tests.codegen.chain import from_module

SAMPLES = Path(__file__).resolve().parents[1] / "sample_models"

pytestmark = pytest.mark.timeout(120)


def check(traced: Trace, stages: int, granularity: str) -> int:
    """Compare random plans with their exports; return how many values were made again."""
    program, rng = traced.program, random.Random(0)
    measured = profile(traced, ProfileOptions(analytic="cpu", granularity=granularity))
    nbytes = {value.name: value.nbytes for value in measured.values}
    built = graph.build(measured)
    returned = returned_values(program)
    priced = planner.cost_model(built, PlanRequest(stages, 4))
    for _ in range(20):
        cuts = sorted(rng.sample(range(1, len(built)), stages - 1))
        stage_of = [sum(cut <= layer for cut in cuts) for layer in range(len(built))]
        nodes = {
            name: stage
            for layer, stage in zip(built.layers, stage_of, strict=True)
            for name in layer.nodes
        }
        _, routing = split(program, nodes, stages)
        found = priced.evaluate(stage_of).boundaries
        for planned, sent in zip(found, routing.cuts, strict=True):
            assert sorted(planned.values) == sorted(sent)
            assert planned.forward_bytes == sum(nbytes[name] for name in sent)
            assert planned.backward_bytes == sum(nbytes[name] for name in sent if name in returned)
    return sum(value.made_again for value in measured.values)


@pytest.mark.parametrize("granularity", ["layer", "op"])
@pytest.mark.parametrize("name", ["gpt", "encoder_decoder", "moe", "resnet", "unet"])
def test_planned_bytes_are_those_that_the_export_sends(name: str, granularity: str) -> None:
    traced = trace(load_model(ModelRef(spec=f"{SAMPLES / name}.py:build")))
    check(traced, 3, granularity)


@pytest.mark.hf
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_planned_bytes_of_masks_and_tables_too(name: str) -> None:
    pytest.importorskip("transformers")
    from tests.codegen.test_huggingface import MODELS

    build, inputs, _ = MODELS[name]
    traced = trace(from_module(build(), kwargs=inputs()))
    assert check(traced, 3, "layer")
