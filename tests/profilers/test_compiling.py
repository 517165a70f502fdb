"""Layers compiled before they are timed: each as a function of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from autosplit.errors import AutosplitError, UsageError
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions, profile
from autosplit.profilers.compiling import compiler, refuse_without_compiler
from autosplit.tracers import Trace, trace
from autosplit.types import ModelRef
from tests.profilers.models import Function

COMPILED = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2, compile=True)
MODEL = """import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))
    return model, (torch.randn(4, 8),)
"""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def subject(tmp_path: Path) -> Trace:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return trace(load_model(ModelRef(spec=f"{path}:build")))


def test_every_layer_and_the_whole_are_compiled(
    subject: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Callable[..., Any]] = []

    def record(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        assert options == {"dynamic": False}
        seen.append(function)
        return function

    monkeypatch.setattr(torch, "compile", record)
    found = profile(subject, COMPILED)
    assert len({id(function.__code__) for function in seen}) == len(found.layers) + 1
    assert found.device.compiled
    seen.clear()
    assert not profile(subject, dataclasses.replace(COMPILED, compile=False)).device.compiled
    assert not seen


def test_what_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*tensors: torch.Tensor) -> tuple[Any, ...]:
        raise torch._dynamo.exc.Unsupported("no such operation\nand much more")

    monkeypatch.setattr(torch, "compile", lambda function, dynamic: broken)
    finish = compiler(COMPILED, torch.device("cpu"))
    compute = finish(Function(("x",), ("y",), lambda x: (x,)))
    assert (compute.inputs, compute.outputs, compute.clone) == (("x",), ("y",), (False,))
    with pytest.raises(AutosplitError, match="cannot compile the layer that gives y") as caught:
        compute(torch.ones(1))
    assert caught.value.cause == "no such operation"


def test_a_machine_that_cannot_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UsageError, match="code for the CPU") as caught:
        refuse_without_compiler(torch.device("cpu"))
    assert "without --compile" in (caught.value.hint or "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="code for a GPU"):
        refuse_without_compiler(torch.device("cuda", 0))


@pytest.mark.slow
@pytest.mark.parametrize("autocast", [None, "bfloat16"])
def test_compiled_layers_are_timed_as_they_run(tmp_path: Path, autocast: str | None) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    loaded = load_model(ModelRef(spec=f"{path}:build", autocast=autocast))
    found = profile(trace(loaded), COMPILED)
    assert all(layer.forward.median_s > 0 for layer in found.layers)
    assert all(layer.backward.median_s > 0 for layer in found.layers)
    assert all(layer.weight_gradient_s <= layer.backward.median_s for layer in found.layers)
    assert found.whole is not None
    assert found.storages
