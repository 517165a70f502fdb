"""Exported code timed beside the layers it is made of, and layers scaled to it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from autosplit import graph, workflow
from autosplit.cost.times import LayerTimes
from autosplit.errors import AutosplitError, UsageError
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, calibrating
from autosplit.profilers.clocks import CpuClock
from autosplit.profilers.exported import StageChain, StageCode, load_stage
from autosplit.serialize import load
from autosplit.tracers import Trace, trace
from autosplit.types import Calibration, GroupTimes, PlanRequest, Profile, StructureFactor
from autosplit.workflow.calibrating import _codes, equal_groups
from tests import examples
from tests.functional import walk

OPTIONS = ProfileOptions(device="cpu", min_repetitions=3, max_repetitions=3, calibrate=True)

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(("name", "inference"), [("unet", False), ("gpt", True)])
def test_exported_code_takes_about_what_its_layers_do(
    name: str, inference: bool, tmp_path: Path
) -> None:
    found = workflow.profile(walk.sample(name), dataclasses.replace(OPTIONS, inference=inference))
    calibration = found.calibration
    assert calibration is not None, found.notes
    assert 0.2 < calibration.ratio < 5
    assert sum((group.layers for group in calibration.groups), ()) == tuple(found.layer)
    assert {each.structure for each in calibration.factors} == {
        layer.structure for layer in found.layers
    }
    assert all((group.backward_s == 0) == inference for group in calibration.groups)
    if inference:
        assert {factor.backward for factor in calibration.factors} == {1.0}
    workflow.save(found, tmp_path / "profile.json")
    assert load(Profile, tmp_path / "profile.json") == found


def test_a_sweep_is_calibrated_at_its_largest_sizes() -> None:
    found = workflow.sweep(walk.sample("mlp"), {"batch": (1, 4)}, OPTIONS)
    assert found.calibration is not None
    assert found.at(batch_size=2).calibration == found.calibration


def test_nothing_is_calibrated_unasked() -> None:
    plain = dataclasses.replace(OPTIONS, calibrate=False)
    assert workflow.profile(walk.sample("mlp"), plain).calibration is None


def test_rounds_are_kept_and_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ref, partial = walk.sample("mlp"), tmp_path / "partial"
    first = workflow.profile(ref, OPTIONS, partial=partial)
    runs: list[StageChain] = []
    run = StageChain.run

    def counted(self: StageChain, clock: CpuClock) -> tuple[list[float], list[float]]:
        runs.append(self)
        return run(self, clock)

    monkeypatch.setattr(StageChain, "run", counted)
    assert workflow.profile(ref, OPTIONS, partial=partial) == first
    assert len(runs) == 1  # which learns where gradients come back


# ---------------------------------------------------------------- the chain of stages


@pytest.fixture
def traced() -> Trace:
    return trace(load_model(walk.sample("encoder_decoder")))


def stages_of(traced: Trace) -> list[tuple[torch.nn.Module, StageCode]]:
    plain = dataclasses.replace(OPTIONS, calibrate=False, analytic="t4")
    profile = workflow.profile(walk.sample("encoder_decoder"), plain)
    codes = _codes(traced.program, profile, equal_groups(profile, 3))
    assert len(codes) == 3
    return [(load_stage(code, traced.model, traced.constants), code) for code in codes]


def test_stages_compute_what_the_model_does_on_its_own_parameters(traced: Trace) -> None:
    model = traced.model.eval()
    stages = stages_of(traced)
    held = {id(each) for stage, _ in stages for each in stage.parameters()}
    assert held <= {id(each) for each in model.parameters()}
    assert not any(module.training for stage, _ in stages for module in stage.modules())

    output = model(*traced.args, **traced.kwargs)
    assert isinstance(output, Tensor)
    output.backward(torch.ones_like(output))
    expected = [parameter.grad for parameter in model.parameters()]
    for parameter in model.parameters():
        parameter.grad = None
    inputs = dict(zip((spec.name for spec in traced.program.inputs), traced.args, strict=True))
    chain = StageChain(stages, inputs, True, traced.program.outputs)
    forward, backward = chain.run(CpuClock(1))
    assert min(*forward, *backward) > 0
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_code_that_does_not_run_is_an_error_of_ours() -> None:
    code = StageCode("Stage0", "class Stage0: missing", (), (), frozenset())
    with pytest.raises(AutosplitError, match="cannot be loaded") as caught:
        load_stage(code, torch.nn.Linear(1, 1), {})
    assert "NameError" in (caught.value.cause or "")


def test_what_cannot_be_calibrated_keeps_its_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> object:
        raise AutosplitError("no such cut", cause="one memory")

    monkeypatch.setattr(calibrating, "compare", refuse)
    found = workflow.profile(walk.sample("mlp"), OPTIONS)
    assert found.calibration is None
    assert found.notes[-1] == "not calibrated: no such cut (one memory)"


@pytest.mark.parametrize(
    ("change", "message"),
    [({"analytic": "t4"}, "goes with measured times"), ({}, "--on-meta builds it without")],
)
def test_only_what_is_measured_whole_is_calibrated(change: dict[str, str], message: str) -> None:
    ref = dataclasses.replace(walk.sample("mlp"), on_meta=not change)
    with pytest.raises(UsageError, match=message):
        workflow.profile(ref, dataclasses.replace(OPTIONS, **change))


# ---------------------------------------------------------------- what follows from it


def scaled(profile: Profile, **forward: float) -> Profile:
    """Return a profile whose structures run so much slower forward than their layers."""
    group = GroupTimes(tuple(profile.layer), 1.0, 1.0, 1.0, 1.0)
    factors = tuple(StructureFactor(name, factor, 1.0) for name, factor in forward.items())
    return dataclasses.replace(profile, calibration=Calibration((group,), factors))


def test_layers_are_scaled_by_the_factor_of_their_structure() -> None:
    profile = examples.profile()
    plain = LayerTimes(graph.build(profile))
    times = LayerTimes(graph.build(scaled(profile, A=2.0, H=0.5)))
    factor = {"A": 2.0, "H": 0.5}
    assert times.forward_s == tuple(
        seconds * factor.get(layer.structure, 1.0)
        for seconds, layer in zip(plain.forward_s, profile.layers, strict=True)
    )
    assert times.backward_s == plain.backward_s
    assert LayerTimes(graph.build(scaled(profile))).forward_s == plain.forward_s


def test_plans_are_made_with_scaled_layers() -> None:
    profile = examples.profile()
    request = PlanRequest(stages=2, microbatches=4)
    plain = workflow.plan(profile, request)
    # The head is the bottleneck of the plain profile: where it is cheap, blocks move to it.
    light = workflow.plan(scaled(profile, H=0.1), request)
    assert len(light.stages[-1].layers) > len(plain.stages[-1].layers)
    assert light.bottleneck_s < plain.bottleneck_s


def test_groups_have_about_equal_time_and_none_is_empty() -> None:
    profile = examples.profile()
    groups = equal_groups(profile, 4)
    assert sum(groups, ()) == tuple(profile.layer)
    assert all(groups)
    assert groups[-1] == ("head",)
    assert len(equal_groups(profile, 100)) <= len(profile.layers)
