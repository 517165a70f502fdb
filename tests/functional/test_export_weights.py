"""Exports whose weights come from files: the same as from the model, in the memory of a tensor."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from autosplit import workflow
from autosplit.errors import AutosplitError
from autosplit.modelspec import load_model
from autosplit.serialize import dump
from autosplit.targets.templates.torch.pipeline.tensorfiles import (
    INDEX,
    TensorInfo,
    write_tensors,
)
from autosplit.tracers import trace
from autosplit.types import ModelRef, Plan
from tests.functional.exports import even_plan
from tests.functional.processes import run

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.norm = nn.BatchNorm1d(6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)
        self.table = torch.arange(6.0)
        self.never = nn.Parameter(torch.ones(2))
        {extra}

    def forward(self, ids):
        x = self.embed(ids).mean(1) + self.shift + self.table
        for layer in self.layers:
            x = torch.relu(layer(x)) + self.shift
        return self.head(self.norm(x))

def build():
    return Net()

def example_inputs(batch_size):
    return (torch.arange(5 * batch_size).view(batch_size, 5) % 9,)
"""
EXTRA = {
    "plain": "",
    "a buffer made from a weight": (
        'self.register_buffer("limit", self.embed.weight.detach().max(), persistent=False)'
        "; self.shift += 0 * self.limit"
    ),
    "a look at a weight": "assert float(self.embed.weight.detach().abs().sum()) > 0",
}


@dataclass
class Case:
    """A model, its plan and an export of its own weights."""

    plan: Plan
    state: dict[str, torch.Tensor]
    folder: Path

    def weights(self, folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (folder / "weights").iterdir()}


def make(folder: Path, text: str, count: int) -> Case:
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(text)
    ref = ModelRef(f"{folder / 'net.py'}:build", batch_size=4)
    loaded = load_model(ref)
    plan = even_plan(ref, trace(loaded).program, count)
    workflow.export(plan, folder / "own")
    return Case(plan, loaded.model.state_dict(), folder / "own")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return make(tmp_path_factory.mktemp("case"), MODEL.format(extra=""), 3)


def sharded(state: dict[str, torch.Tensor], folder: Path) -> Path:
    """Write a Hugging Face folder in which the tied weight stands once."""
    folder.mkdir()
    kept = {name: tensor for name, tensor in state.items() if name != "head.weight"}
    mapping = {name: f"model-{k % 2 + 1}.safetensors" for k, name in enumerate(kept)}
    for file in sorted(set(mapping.values())):
        part = {name: kept[name].clone() for name in kept if mapping[name] == file}
        save_file(part, folder / file)
    (folder / INDEX).write_text(json.dumps({"weight_map": mapping}))
    return folder


@pytest.mark.parametrize("extra", EXTRA)
def test_weights_of_a_file_give_the_export_of_the_model(tmp_path, extra):
    case = make(tmp_path, MODEL.format(extra=EXTRA[extra]), 2)
    torch.save(case.state, tmp_path / "w.pt")
    for k, source in enumerate((tmp_path / "w.pt", sharded(case.state, tmp_path / "hf"))):
        out = tmp_path / f"out{k}"
        workflow.export(case.plan, out, weights=source)
        assert case.weights(out) == case.weights(case.folder)


def test_other_weights_arrive(case, tmp_path):
    other = {name: tensor + 1 for name, tensor in case.state.items()}
    other["head.weight"] = other["embed.weight"]
    torch.save(other, tmp_path / "w.pt")
    workflow.export(case.plan, tmp_path / "out", weights=tmp_path / "w.pt")
    workflow.merge_checkpoint(tmp_path / "out", tmp_path / "m.pt")
    merged = torch.load(tmp_path / "m.pt", weights_only=True)
    assert merged.keys() == other.keys()
    assert all(torch.equal(merged[name], other[name]) for name in other)


def test_weights_that_do_not_fit_leave_the_old_export(case, tmp_path):
    out = tmp_path / "out"
    workflow.export(case.plan, out)
    before = case.weights(out)
    broken = {name: tensor for name, tensor in case.state.items() if name != "layers.1.bias"}
    torch.save(broken, tmp_path / "w.pt")
    with pytest.raises(AutosplitError, match=r"lacks 1 of the model's tensors \(layers.1.bias\)"):
        workflow.export(case.plan, out, weights=tmp_path / "w.pt", force=True)
    nan = {"layers.1.bias": torch.full((6,), 1e39, dtype=torch.float64)}
    torch.save(case.state | nan, tmp_path / "w.pt")
    with pytest.raises(AutosplitError, match=r"layers.1.bias holds numbers too large"):
        workflow.export(case.plan, out, weights=tmp_path / "w.pt", convert_weights=True, force=True)
    assert case.weights(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "w.pt"]


def test_more_tensors_than_the_model_has_are_left_out_when_asked(case, tmp_path):
    torch.save(case.state | {"teacher": torch.ones(2)}, tmp_path / "w.pt")
    with pytest.raises(
        AutosplitError, match=r"has 1 that the model does not \(teacher\)"
    ) as caught:
        workflow.export(case.plan, tmp_path / "out", weights=tmp_path / "w.pt")
    assert caught.value.hint == "--ignore-extra leaves them out"
    workflow.export(case.plan, tmp_path / "out", weights=tmp_path / "w.pt", ignore_extra=True)
    assert case.weights(tmp_path / "out") == case.weights(case.folder)


@pytest.mark.parametrize("most", [100, 100_000], ids=["text", "weights"])
def test_a_disk_that_fills_leaves_the_old_export(tmp_path, most):
    case = make(tmp_path, MODEL.format(extra="self.big = nn.Parameter(torch.ones(50_000))"), 2)
    before = {p: p.read_bytes() for p in case.folder.rglob("*") if p.is_file()}
    there = sorted(tmp_path.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    try:
        with pytest.raises(AutosplitError, match="cannot write") as caught:
            workflow.export(case.plan, case.folder, force=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in str(caught.value.cause)
    assert sorted(tmp_path.rglob("*")) == there
    assert {path: path.read_bytes() for path in before} == before


def test_half_precision_is_converted_when_asked(case, tmp_path):
    halves = {n: t.bfloat16() if t.is_floating_point() else t for n, t in case.state.items()}
    torch.save(halves, tmp_path / "w.pt")
    with pytest.raises(AutosplitError, match="--weights-dtype model"):
        workflow.export(case.plan, tmp_path / "out", weights=tmp_path / "w.pt")
    workflow.export(case.plan, tmp_path / "out", weights=tmp_path / "w.pt", convert_weights=True)
    with safe_open(tmp_path / "out" / "weights" / "stage_0.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("embed.weight"), halves["embed.weight"].float())


def test_the_command_and_the_script_of_the_folder_write_the_same(case, tmp_path):
    cli = [sys.executable, "-m", "autosplit", "checkpoint"]
    own = [sys.executable, str(case.folder / "checkpoint.py")]
    run([*cli, "merge", str(case.folder), "-o", "a", "--hf", "--max-shard-size", "1kB"],
        folder=tmp_path)  # fmt: skip
    run([*own, "merge", "-o", "b", "--hf", "--max-shard-size", "1kB"], folder=tmp_path)
    run([*cli, "split", "a", "--export", str(case.folder), "-o", "c"], folder=tmp_path)
    run([*own, "split", "b", "-o", "d"], folder=tmp_path)
    for one, other in (("a", "b"), ("c", "d")):
        first = {path.name: path.read_bytes() for path in (tmp_path / one).iterdir()}
        assert first == {path.name: path.read_bytes() for path in (tmp_path / other).iterdir()}
    assert (tmp_path / "a" / INDEX).is_file()
    assert case.weights(case.folder).keys() == {path.name for path in (tmp_path / "c").iterdir()}
    told = run([*own, "split", "nothing", "-o", "e"], folder=tmp_path, fails=True)
    assert "error: nothing does not exist" in told


def test_two_stages_take_over_what_four_have(tmp_path):
    case = make(tmp_path, MODEL.format(extra=""), 4)
    program = trace(load_model(case.plan.model)).program
    workflow.export(even_plan(case.plan.model, program, 2), tmp_path / "two")
    torch.save({n: t * 2 for n, t in case.state.items()}, tmp_path / "w.pt")
    workflow.export(case.plan, tmp_path / "four", weights=tmp_path / "w.pt")
    with pytest.raises(AutosplitError, match="weights exists"):
        workflow.recut_checkpoint(tmp_path / "four", tmp_path / "two", tmp_path / "two" / "weights")
    workflow.recut_checkpoint(tmp_path / "four", tmp_path / "two", tmp_path / "w")
    workflow.merge_checkpoint(tmp_path / "two", tmp_path / "m.pt", weights=tmp_path / "w")
    workflow.merge_checkpoint(tmp_path / "four", tmp_path / "n.pt")
    one, other = (torch.load(tmp_path / name, weights_only=True) for name in ("m.pt", "n.pt"))
    assert one.keys() == other.keys() == case.state.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("dcp", [False, True], ids=["recut", "through dcp"])
def test_a_training_goes_on_with_other_stages_as_it_would_have(tmp_path, dcp):
    case = make(tmp_path, MODEL.format(extra=""), 4)
    program = trace(load_model(case.plan.model)).program
    workflow.export(even_plan(case.plan.model, program, 2), tmp_path / "two")

    def losses(folder: Path, *arguments: str) -> list[float]:
        run(["./launch.sh", "train.py", "--report", "r.json", *arguments], folder=folder)
        return list(json.loads((folder / "r.json").read_text())["losses"])

    wanted = losses(case.folder, "--steps", "6")
    losses(case.folder, "--steps", "3", "--checkpoint-dir", "ck")
    old, new = case.folder / "ck" / "step_3", tmp_path / "two" / "ck" / "step_3"
    if dcp:
        workflow.merge_checkpoint(case.folder, tmp_path / "dcp", weights=old, distributed=True)
        old = tmp_path / "dcp"
    new.parent.mkdir()
    workflow.recut_checkpoint(old, tmp_path / "two", new)
    found = losses(tmp_path / "two", "--steps", "6", "--resume", str(new))
    assert found == pytest.approx(wanted[3:], rel=1e-6)
    assert len(found) == 3


# ---------------------------------------------------------------- memory

WIDTH, LAYERS, SHARDS = 1024, 48, 8
BIG = f"""
import torch
from torch import nn

def build():
    layers = [nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})]
    return nn.Sequential(*layers)

def example_inputs(batch_size):
    return (torch.ones(batch_size, {WIDTH}),)
"""
MIB = 2**20

# The peak counts from here on, so that what imports need is not in it.
PEAK = """
import sys, torch
def peak():
    fields = dict(line.split(":") for line in open("/proc/self/status"))
    return int(fields["VmHWM"].split()[0]) * 1024
def reset():
    open("/proc/self/clear_refs", "w").write("5")
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's peaks")
def test_an_export_needs_memory_for_a_shard_and_a_rank_for_its_share(tmp_path):
    (tmp_path / "big.py").write_text(BIG)
    ref = ModelRef(f"{tmp_path / 'big.py'}:build", batch_size=2)
    from autosplit.modelspec.meta import without_parameters

    with without_parameters():
        loaded = load_model(ref)
    dump(even_plan(ref, trace(loaded).program, 4), tmp_path / "plan.json")
    source = tmp_path / "hf"
    source.mkdir()
    names = list(loaded.model.state_dict())
    files = [f"model-{k:05}-of-{SHARDS:05}.safetensors" for k in range(1, SHARDS + 1)]
    info = TensorInfo((WIDTH, WIDTH), torch.float32)
    for file, k in zip(files, range(SHARDS), strict=True):
        infos = dict.fromkeys(names[k::SHARDS], info)
        write_tensors(source / file, infos, lambda _: torch.rand(WIDTH, WIDTH))
    mapping = {name: files[k % SHARDS] for k, name in enumerate(names)}
    (source / INDEX).write_text(json.dumps({"weight_map": mapping}))
    shard = LAYERS // SHARDS * info.nbytes
    assert SHARDS * shard > 190 * MIB

    export = (
        "from autosplit import workflow, weights, codegen, modelspec, tracers, targets\n"
        "reset(); start = peak()\n"
        "workflow.export('plan.json', 'out', weights='hf')\n"
        "print(peak() - start)"
    )
    grown = int(run([sys.executable, "-c", PEAK + export], folder=tmp_path).split()[-1])
    assert grown < 2 * shard, f"{grown / MIB:.0f} MiB for shards of {shard / MIB:.0f} MiB"

    start = (
        "sys.path.insert(0, '.')\n"
        "import pipeline, stages\n"
        "reset(); start = peak()\n"
        "stage = stages.STAGES[1]()\n"
        "pipeline.load_stage(stage, 1, 'weights')\n"
        "print(peak() - start)"
    )
    share = (tmp_path / "out" / "weights" / "stage_1.safetensors").stat().st_size
    grown = int(run([sys.executable, "-c", PEAK + start], folder=tmp_path / "out").split()[-1])
    assert share > 40 * MIB
    assert grown < 1.5 * share, f"{grown / MIB:.0f} MiB for a share of {share / MIB:.0f} MiB"


@pytest.mark.hf
def test_a_folder_that_transformers_wrote_goes_in_and_comes_out(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 60}
    config = transformers.LlamaConfig(
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        **sizes,
    )
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "hf", max_shard_size="30KB")
    assert (tmp_path / "hf" / INDEX).is_file()
    ref = ModelRef(f"hf:{tmp_path / 'hf'}", batch_size=2, task="causal-lm")
    plan = even_plan(ref, trace(load_model(ref)).program, 2)
    workflow.export(plan, tmp_path / "out", weights=tmp_path / "hf")
    workflow.verify(tmp_path / "out").raise_if_failed()
    workflow.merge_checkpoint(tmp_path / "out", tmp_path / "back", max_shard_bytes=30_000)
    back = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back")
    wanted = model.state_dict()
    found = back.state_dict()
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
