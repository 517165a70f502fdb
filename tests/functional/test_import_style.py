"""Exports whose stages run the model's own modules as they are."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autosplit import workflow
from autosplit.errors import AutosplitError
from autosplit.modelspec import load_model
from autosplit.tracers import trace
from autosplit.types import ModelRef, Plan
from autosplit.verification import verify
from tests.codegen.chain import ROOT, cut
from tests.functional.exports import even_plan
from tests.functional.processes import run

pytestmark = pytest.mark.timeout(300)

OWN = """
import torch
from torch import nn
from inner_parts import Gate

class Block(nn.Module):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate
        self.norm = nn.BatchNorm1d(6)
        self.gate = Gate(6)
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)

    def forward(self, x, scale=None, *, keep: bool, rate: float):
        y = self.gate(self.norm(x)) + self.shift
        if keep:
            y = nn.functional.dropout(y, rate, self.training)
        return (x + y * scale if scale is not None else x + y), None

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        rates = torch.linspace(0, 0.3, 4).tolist()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(Block(rate) for rate in rates)
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        scale = torch.sigmoid(x.mean(1, keepdim=True))
        x = self.first(x)
        for block in self.blocks:
            x, _ = block(x, scale=scale, keep=True, rate=0.2 if self.training else 0.0)
        return self.last(x)

def build():
    torch.manual_seed(0)
    return Net()

def example_inputs(batch_size):
    return (torch.randn(batch_size, 6, generator=torch.Generator().manual_seed(1)),)
"""
INNER = """
import torch
from torch import nn

class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.linear(x)) * x
"""


def plan_at(ref: ModelRef, at: Sequence[str]) -> Plan:
    """Return a plan of single operations with a new stage where each named module begins."""
    program = trace(load_model(ref)).program
    stage_of = cut(program, len(at) + 1, at)
    plan = even_plan(ref, program, len(at) + 1)
    operations = tuple(node.name for node in program.operations)
    layers = [
        tuple(name for name in operations if stage_of[name] == stage)
        for stage in range(len(at) + 1)
    ]
    stages = tuple(
        replace(stage, layers=names) for stage, names in zip(plan.stages, layers, strict=True)
    )
    nodes = tuple((name,) for name in operations)
    return replace(plan, order=operations, stages=stages, nodes=nodes)


def write_own(folder: Path, name: str = "own_model.py", inner: str = "inner_parts") -> ModelRef:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(textwrap.dedent(OWN).replace("inner_parts", inner))
    (folder / f"{inner}.py").write_text(textwrap.dedent(INNER))
    return ModelRef(f"{folder / name}:build", batch_size=4)


def sample(name: str) -> ModelRef:
    return ModelRef(f"{ROOT}/sample_models/{name}.py:build", batch_size=4)


def notes(folder: Path, kind: str) -> list[str]:
    stages = json.loads((folder / "report.json").read_text())["stages"]
    return [note["where"] for s in stages for note in s["rewrites"] if note["kind"] == kind]


@pytest.mark.parametrize(
    ("name", "at", "kept"),
    [
        ("gpt", ["blocks.3"], [f"blocks.{i}" for i in range(6)]),
        ("resnet", ["blocks.2", "blocks.4"], [f"blocks.{i}" for i in range(6)]),
    ],
)
def test_samples_equal_their_model_in_processes(
    name: str, at: list[str], kept: list[str], tmp_path: Path
) -> None:
    workflow.export(plan_at(sample(name), at), tmp_path / "out", style="import")
    assert [each for each in notes(tmp_path / "out", "imported") if each in kept] == kept
    report = verify(tmp_path / "out", distributed=True)
    assert report.passed


def test_own_code_stays_and_travels(tmp_path: Path) -> None:
    ref = write_own(tmp_path / "code")
    folder = tmp_path / "out"
    workflow.export(plan_at(ref, ["blocks.2"]), folder, style="import")
    assert notes(folder, "imported") == [f"blocks.{i}" for i in range(4)]
    text = (folder / "stages" / "stage_0.py").read_text()
    assert "rate=0.2 if self.training else 0.0" in text
    assert "dropout" not in text
    assert verify(folder).passed
    shutil.rmtree(tmp_path / "code")
    moved, output = tmp_path / "elsewhere", tmp_path / "o.safetensors"
    folder.rename(moved)
    said = run([str(moved / "launch.sh"), "infer.py", "--output", str(output)], PYTHONPATH="")
    assert output.is_file(), said


def test_missing_code_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    workflow.export(plan_at(write_own(tmp_path / "code"), ["blocks.2"]), folder, style="import")
    (folder / "model_source" / "inner_parts.py").unlink()
    shutil.rmtree(tmp_path / "code")
    sys.modules.pop("inner_parts")
    with pytest.raises(AutosplitError, match=r"stage 0 of .* cannot be loaded") as found:
        verify(folder)
    assert "No module named 'inner_parts'" in str(found.value.cause)
    (folder / "model_source" / "own_model.py").write_text("class Net: pass\n")
    with pytest.raises(AutosplitError) as found:
        verify(folder)
    assert "model_source/own_model.py has no build" in str(found.value.cause)


def test_neighbours_with_names_of_the_export_are_refused(tmp_path: Path) -> None:
    ref = write_own(tmp_path / "code", inner="data")
    with pytest.raises(AutosplitError, match="the model needs its own module 'data'"):
        workflow.export(plan_at(ref, ["blocks.2"]), tmp_path / "out", style="import")
    assert not (tmp_path / "out").exists()


def test_a_model_without_whole_modules_is_refused(tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def build():\n    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))\n\n"
        "def example_inputs(batch_size):\n    return (torch.ones(batch_size, 3),)\n"
    )
    ref = ModelRef(f"{tmp_path / 'flat.py'}:build", batch_size=2)
    with pytest.raises(AutosplitError, match="no module of the model can be run as it is"):
        workflow.render(plan_at(ref, ["2"]), style="import")
    with pytest.raises(AutosplitError, match="there is no style 'wild'"):
        workflow.render(plan_at(ref, ["2"]), style="wild")


def test_export_is_the_same_twice_and_checked(tmp_path: Path) -> None:
    plan = plan_at(sample("gpt"), ["blocks.3"])
    first = workflow.export(plan, tmp_path / "out", style="import")
    assert workflow.render(plan, style="import") == first
    assert workflow.stale(plan, tmp_path / "out", style="import") == ()
    assert "stages/stage_0.py" in workflow.stale(plan, tmp_path / "out")


@pytest.mark.hf
@pytest.mark.parametrize(("name", "at"), [("GPT2", "transformer.h.2"), ("Llama", "model.layers.2")])
def test_hugging_face_blocks_run_as_they_are(name: str, at: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "GPT2": {"n_embd": 32, "n_layer": 4, "n_head": 2, "n_positions": 32},
        "Llama": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    }[name]
    special = {"bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{name}Config")(vocab_size=64, **special, **sizes)
    config.save_pretrained(tmp_path / "config")
    ref = ModelRef(f"hf:{tmp_path / 'config'}", batch_size=2)
    folder = tmp_path / "out"
    workflow.export(plan_at(ref, [at]), folder, style="import")
    head = at.rpartition(".")[0]
    assert {f"{head}.{i}" for i in range(4)} <= set(notes(folder, "imported"))
    shutil.rmtree(tmp_path / "config")
    assert "original(f" in (folder / "stages" / "stage_0.py").read_text()
    (tmp_path / "config").mkdir()
    shutil.copy(folder / "model_source" / "config.json", tmp_path / "config")
    assert verify(folder, distributed=name == "GPT2").passed
