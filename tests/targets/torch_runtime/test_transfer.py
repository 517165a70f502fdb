"""Weights of stages become one model's and back, and those of other stages."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from autosplit.targets.templates.torch.pipeline import PipelineError, transfer
from autosplit.targets.templates.torch.pipeline.optimizer_state import optimizer_files
from autosplit.targets.templates.torch.pipeline.routing import Route, Routing, Run
from autosplit.targets.templates.torch.pipeline.tensorfiles import open_tensors, same_bits
from autosplit.targets.templates.torch.pipeline.transfer import merge, merge_state, recut, split
from autosplit.targets.templates.torch.pipeline.tree import Tree
from autosplit.targets.templates.torch.pipeline.weights import write_files


class Model(nn.Module):
    """Four layers, the first and last weight tied, and a buffer no ``state_dict`` holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))
        self.layers[3].weight = self.layers[0].weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.randn(3), persistent=False)


ALIASES = {"layers.3.weight": "layers.0.weight"}
HELD = {
    2: (("layers.0", "layers.1"), ("layers.2", "layers.3", "norm")),
    4: (("layers.0",), ("layers.1",), ("layers.2",), ("layers.3", "norm")),
}


def routing(count: int) -> Routing:
    tree = Tree("value", "x", None, (), ())
    return Routing(
        stages=(Route((), (), ()),) * count,
        cuts=((),) * (count - 1),
        input_tree=tree,
        output_tree=tree,
        values={},
        shared=(),
        replicated=(),
        aliases=ALIASES,
        buffers=((),) * count,
        symbols={},
        mode=None,
        run=Run(tuple(range(count)), "1f1b", 1, 1),
    )


class Stage(nn.Module):
    """What a stage of some modules holds, under the model's names."""

    def __init__(self, model: Model, held: tuple[str, ...]) -> None:
        super().__init__()
        for name in held:
            outer, _, inner = name.rpartition(".")
            if outer and outer not in self._modules:
                self.add_module(outer, nn.ModuleDict())
            place = self.get_submodule(outer) if outer else self
            place.add_module(inner, model.get_submodule(name))


def stages(model: Model, count: int) -> dict[int, nn.Module]:
    return {k: Stage(model, held) for k, held in enumerate(HELD[count])}


def write(model: Model, count: int, folder: Path) -> Path:
    """Write the weights of ``count`` stages."""
    folder.mkdir()
    for index, stage in stages(model, count).items():
        save_file(stage.state_dict(), folder / f"stage_{index}.safetensors")
    save_file({"shift": model.shift}, folder / "buffers_1.safetensors")
    save_file({"x": torch.ones(1)}, folder / "example.safetensors")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("output", ["m.safetensors", "m.pt", "shards", "whole"])
def test_merged_weights_are_the_models_bit_by_bit(tmp_path, output):
    model = Model()
    folder = write(model, 4, tmp_path / "w")
    size = {"shards": 50, "whole": 10**6}.get(output)
    merge(routing(4), folder, tmp_path / output, max_shard_bytes=size)
    found = open_tensors(tmp_path / output)
    wanted = model.state_dict()
    assert set(found.infos) == set(wanted)
    assert all(same_bits(found.read(name), tensor) for name, tensor in wanted.items())
    model.load_state_dict({name: found.read(name) for name in found.infos}, strict=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([output, "w"])
    if output == "shards":
        sizes = [len(load_file(p)) for p in sorted((tmp_path / output).glob("*.safetensors"))]
        assert len(sizes) > 3
        assert sum(sizes) == len(wanted)


def test_a_merged_state_dict_keeps_ties(tmp_path):
    merged = merge_state(routing(2), write(Model(), 2, tmp_path / "w"))
    assert merged["layers.3.weight"] is merged["layers.0.weight"]


def test_copies_of_another_step_are_refused(tmp_path):
    model = Model()
    folder = write(model, 4, tmp_path / "w")
    model.layers[3].weight = nn.Parameter(torch.zeros(3, 3))
    save_file(stages(model, 4)[3].state_dict(), folder / "stage_3.safetensors")
    with pytest.raises(PipelineError, match=r"copies of layers.0.weight differ.*another step"):
        merge(routing(4), folder, tmp_path / "m.safetensors")
    assert not (tmp_path / "m.safetensors").exists()


def test_other_suffixes_and_lost_stages_are_refused(tmp_path):
    folder = write(Model(), 2, tmp_path / "w")
    with pytest.raises(PipelineError, match=r"must end in .safetensors or .pt"):
        merge(routing(2), folder, tmp_path / "m.bin")
    with pytest.raises(PipelineError, match=r"stage_2.safetensors does not exist"):
        merge(routing(3), folder, tmp_path / "m.pt")
    (folder / "stage_0.safetensors").unlink()
    with pytest.raises(PipelineError, match="does not hold the weights of all stages"):
        recut(routing(4), folder, folder, tmp_path / "out")


def test_a_folder_of_checkpoints_is_told_from_one(tmp_path):
    (tmp_path / "ck").mkdir()
    for step in (5, 10):
        write(Model(), 2, tmp_path / "ck" / f"step_{step}")
    for refused in (
        lambda: merge(routing(2), tmp_path / "ck", tmp_path / "m.pt"),
        lambda: recut(routing(2), tmp_path / "ck", tmp_path / "ck" / "step_5", tmp_path / "out"),
    ):
        with pytest.raises(PipelineError, match="holds checkpoints and is not one") as error:
            refused()
        assert "step_10" in str(error.value)


def test_a_split_is_what_was_merged(tmp_path):
    folder = write(Model(), 4, tmp_path / "w")
    for name, size in (("m.pt", None), ("hf", 50)):
        merge(routing(4), folder, tmp_path / name, max_shard_bytes=size)
        split(routing(4), tmp_path / name, folder, tmp_path / f"from_{name}")
        back = contents(tmp_path / f"from_{name}")
        assert back.keys() == contents(folder).keys()
        for file in back:
            one, other = load_file(folder / file), load_file(tmp_path / f"from_{name}" / file)
            assert one.keys() == other.keys()
            assert all(same_bits(one[key], other[key]) for key in one)


def test_a_split_converts_when_asked(tmp_path):
    model = Model()
    folder = write(model, 2, tmp_path / "w")
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor
        for name, tensor in model.state_dict().items()
    }
    torch.save(halves, tmp_path / "half.pt")
    with pytest.raises(PipelineError, match="--weights-dtype model converts them"):
        split(routing(2), tmp_path / "half.pt", folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    split(routing(2), tmp_path / "half.pt", folder, tmp_path / "out", convert=True)
    found = load_file(tmp_path / "out" / "stage_0.safetensors")["layers.1.weight"]
    assert torch.equal(found, halves["layers.1.weight"].float())


def train(model: Model) -> torch.optim.Optimizer:
    """Train a step, with a parameter group of their own for biases."""
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for name, p in named.items() if name.endswith("weight")]},
        {"params": [p for name, p in named.items() if name.endswith("bias")], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.1)
    x = torch.randn(4, 3)
    for layer in model.layers:
        x = layer(x)
    model.norm(x).square().sum().backward()
    optimizer.step()
    return optimizer


def checkpoint(model: Model, optimizer: torch.optim.Optimizer, count: int, folder: Path) -> Path:
    """Write what a training of ``count`` stages leaves behind."""
    write(model, count, folder)
    write_files(optimizer_files(optimizer, stages(model, count)), folder)
    (folder / "training.json").write_text('{"step": 7}\n')
    return folder


@pytest.mark.parametrize(("old", "new"), [(4, 2), (2, 4)])
def test_training_goes_on_with_other_stages(tmp_path, old, new):
    model = Model()
    optimizer = train(model)
    source = checkpoint(model, optimizer, old, tmp_path / "old")
    wanted = checkpoint(model, optimizer, new, tmp_path / "wanted")
    found = write(Model(), new, tmp_path / "new")
    recut(routing(new), source, found, found)
    assert contents(found).keys() == contents(wanted).keys()
    for path in wanted.glob("*.safetensors"):
        one, other = load_file(path), load_file(found / path.name)
        assert one.keys() == other.keys(), path.name
        assert all(same_bits(one[key], other[key]) for key in one), path.name
    for path in wanted.glob("*.json"):
        one, other = json.loads(path.read_text()), json.loads((found / path.name).read_text())
        for group in (*one.get("groups", ()), *other.get("groups", ())):
            group["names"].sort()
        assert one == other


def test_weights_alone_move_too_and_old_state_does_not_stay(tmp_path):
    source = write(Model(), 4, tmp_path / "old")
    fresh = Model()
    target = checkpoint(fresh, train(fresh), 2, tmp_path / "new")
    recut(routing(2), source, target, target)
    assert sorted(contents(target)) == [
        *("buffers_1.safetensors", "example.safetensors"),
        *("stage_0.safetensors", "stage_1.safetensors"),
    ]


def test_another_model_is_refused(tmp_path):
    source = write(Model(), 4, tmp_path / "old")
    tensors = load_file(source / "stage_2.safetensors")
    save_file({"other.weight": tensors["layers.2.weight"]}, source / "stage_2.safetensors")
    target = write(Model(), 2, tmp_path / "new")
    before = contents(target)
    with pytest.raises(PipelineError, match=r"lacks 2 of .* has 1 that the model does not"):
        recut(routing(2), source, target, target)
    assert contents(target) == before


def test_groups_that_differ_between_stages_are_refused(tmp_path):
    model = Model()
    source = checkpoint(model, train(model), 2, tmp_path / "old")
    path = source / "optimizer_1.json"
    path.write_text(path.read_text().replace("0.1", "0.2"))
    with pytest.raises(PipelineError, match="other parameter groups than the stages before"):
        recut(routing(4), source, write(Model(), 4, tmp_path / "new"), tmp_path / "out")


@pytest.mark.parametrize("command", ["merge", "shards", "split", "recut"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, command):
    folder = write(Model(), 4, tmp_path / "w")
    merge(routing(4), folder, tmp_path / "m.safetensors")
    merge(routing(4), folder, tmp_path / "hf", max_shard_bytes=50)
    names = sorted(tmp_path.rglob("*"))
    before = {path: path.read_bytes() for path in names if path.is_file()}

    def full(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(transfer, "write_tensors", full)
    file = tmp_path / "m.safetensors"
    calls = {
        "merge": lambda: merge(routing(4), folder, file),
        "shards": lambda: merge(routing(4), folder, tmp_path / "hf", max_shard_bytes=50),
        "split": lambda: split(routing(4), file, folder, folder),
        "recut": lambda: recut(routing(4), folder, folder, folder),
    }
    with pytest.raises(PipelineError, match=r"cannot write .*: No space left on device"):
        calls[command]()
    assert sorted(tmp_path.rglob("*")) == names
    assert {path: path.read_bytes() for path in before} == before
