"""A small model and its export, written by hand: what verify must accept, and find fault with."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile, copytree, ignore_patterns

import torch
from safetensors.torch import save_file

import autosplit
from autosplit.modelspec import load_model
from autosplit.program import InputSpec, Tree
from autosplit.serialize import dump, to_data
from autosplit.stages.types import RoutedValue, Routing, SharedState, StageRoute
from autosplit.types import ModelRef, Plan, PlanRequest, StageMemory, StagePlan

TEMPLATES = Path(autosplit.__file__).parent / "targets" / "templates" / "torch"

MODEL = '''
"""Tied embedding, BatchNorm, dropout, an in-place operation and a dict as output."""

import torch
from torch import nn
from torch.nn import functional as F


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.3)
        self.spare = nn.Linear(2, 2)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.full((6,), 2.0), persistent=False)

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        y = self.norm(x) * self.scale
        y.relu_()
        y = F.dropout(self.drop(y), 0.2, self.training)
        return {"logits": self.head(y + x), "hidden": (y,)}


def build():
    return Tiny()


def example_inputs(batch_size):
    return (torch.arange(batch_size * 3).reshape(batch_size, 3) % 11,)


def loss(output, labels):
    return F.cross_entropy(output["logits"], labels) + output["hidden"][0].mean()


def batches(batch_size):
    generator = torch.Generator().manual_seed(0)
    while True:
        ids = torch.randint(11, (batch_size, 3), generator=generator)
        yield (ids,), (ids.sum(1) % 11,)
'''

STAGE_0 = """
from torch import Tensor, nn


class Stage0(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.spare = nn.Linear(2, 2)

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        x = self.embed(ids).mean(1)
        return self.norm(x), x
"""

STAGE_1 = """
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Stage1(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(6, 11, bias=False)
        self.register_buffer("scale", torch.empty(6), persistent=False)

    def forward(self, norm: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = norm * self.scale
        y.relu_()
        y = F.dropout(self.drop(y), 0.2, self.training)
        return self.head(y + x), y
"""

STAGES = """
from .stage_0 import Stage0
from .stage_1 import Stage1

STAGES = (Stage0, Stage1)
"""

ROUTING = Routing(
    stages=(
        StageRoute(("ids",), ("norm", "mean"), ()),
        StageRoute(("norm", "mean"), ("head", "dropout"), ()),
    ),
    cuts=(("norm", "mean"),),
    inputs=(InputSpec("ids", ("args", 0), 0),),
    input_tree=Tree("tuple", items=(Tree("tuple", items=(Tree("value", "ids"),)), Tree("dict"))),
    output_tree=Tree(
        "dict",
        keys=("logits", "hidden"),
        items=(Tree("value", "head"), Tree("tuple", items=(Tree("value", "dropout"),))),
    ),
    values=(
        RoutedValue("ids", ("batch", 3), "int64", 0),
        RoutedValue("norm", ("batch", 6), "float32", 0),
        RoutedValue("mean", ("batch", 6), "float32", 0),
        RoutedValue("head", ("batch", 11), "float32", 0),
        RoutedValue("dropout", ("batch", 6), "float32", 0),
    ),
    shared=(SharedState("embed.weight", ((0, "embed.weight"), (1, "head.weight"))),),
    aliases=(("head.weight", "embed.weight"),),
    unused=("spare.weight", "spare.bias"),
    buffers=((), ("scale",)),
    symbols=(("batch", 3),),
)


def write_model(folder: Path, *changes: tuple[str, str]) -> ModelRef:
    """Write the model's file, with replacements, and return its spec."""
    path, text = folder / "tiny.py", MODEL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    return ModelRef(f"{path}:build", batch_size=3)


def write_export(
    folder: Path,
    ref: ModelRef,
    *,
    routing: Routing = ROUTING,
    stage_0: str = STAGE_0,
    stage_1: str = STAGE_1,
) -> Path:
    """Write an export of the model by hand."""
    (folder / "stages").mkdir(parents=True)
    (folder / "weights").mkdir()
    copytree(TEMPLATES / "pipeline", folder / "pipeline", ignore=ignore_patterns("__pycache__"))
    copyfile(TEMPLATES / "checkpoint.py", folder / "checkpoint.py")
    (folder / "stages" / "__init__.py").write_text(STAGES)
    (folder / "stages" / "stage_0.py").write_text(stage_0)
    (folder / "stages" / "stage_1.py").write_text(stage_1)
    dump(_plan(ref), folder / "plan.json")
    run = {"ranks": [0, 1], "schedule": "1f1b", "microbatches": 2, "microbatch_size": 3}
    data = {"schema": "autosplit.routing", "version": [1, 0], **to_data(routing), "run": run}
    (folder / "routing.json").write_text(json.dumps(data))
    state = load_model(ref).model.state_dict()
    first = {name: value for name, value in state.items() if not name.startswith("head")}
    save_file(first, folder / "weights" / "stage_0.safetensors")
    second = {"head.weight": state["head.weight"].clone()}
    save_file(second, folder / "weights" / "stage_1.safetensors")
    save_file({"scale": torch.full((6,), 2.0)}, folder / "weights" / "buffers_1.safetensors")
    return folder


def _plan(ref: ModelRef) -> Plan:
    stages = tuple(
        StagePlan((name,), rank, None, 1.0, 1.0, 0.0, 1, StageMemory(), 0.0)
        for rank, name in enumerate(("front", "back"))
    )
    return Plan(
        model=ref,
        fingerprint="0",
        profile_digest="0",
        request=PlanRequest(2, 2),
        order=("front", "back"),
        stages=stages,
        status="optimal",
        solver="dp",
        objective_s=1.0,
        bottleneck_s=1.0,
        bound_s=1.0,
        gap=0.0,
        solver_s=0.0,
        step_s=1.0,
        single_s=2.0,
    )
