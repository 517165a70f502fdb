"""Checkpoints of torch.distributed.checkpoint: written for others, read without running code."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.tensorfiles import open_tensors, same_bits
from autosplit.targets.templates.torch.pipeline.transfer import merge, recut
from tests.targets.torch_runtime.test_transfer import (
    Model,
    checkpoint,
    contents,
    routing,
    train,
    write,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


@pytest.fixture
def trained() -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Model()
    return model, train(model)


@pytest.mark.parametrize("new", [2, 4])
def test_training_goes_on_from_it_with_any_stages(trained, tmp_path: Path, new: int):
    source = checkpoint(*trained, 4, tmp_path / "old")
    merge(routing(4), source, tmp_path / "dcp", distributed=True)
    found = write(Model(), new, tmp_path / "new")
    recut(routing(new), tmp_path / "dcp", found, found)
    wanted = checkpoint(*trained, new, tmp_path / "wanted")
    assert contents(found).keys() == contents(wanted).keys()
    for path in wanted.glob("*.safetensors"):
        one, other = load_file(path), load_file(found / path.name)
        assert one.keys() == other.keys(), path.name
        assert all(same_bits(one[key], other[key]) for key in one), path.name
    for path in wanted.glob("*.json"):
        one, other = json.loads(path.read_text()), json.loads((found / path.name).read_text())
        for group in (*one.get("groups", ()), *other.get("groups", ())):
            group["names"].sort()
            group["settings"]["betas"] = list(group["settings"]["betas"])
        assert one == other
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dcp", "new", "old", "wanted"]


def test_torch_loads_model_and_optimizer(trained, tmp_path: Path):
    model, optimizer = trained
    source = checkpoint(model, optimizer, 2, tmp_path / "old")
    merge(routing(2), source, tmp_path / "dcp", distributed=True)
    fresh = Model()
    other = train(fresh)
    state = {
        "model": fresh.state_dict(),
        "optim": get_optimizer_state_dict(fresh, other, options=FLAT),
    }
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    fresh.load_state_dict(state["model"])
    set_optimizer_state_dict(fresh, other, state["optim"], options=FLAT)
    for name, tensor in model.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], tensor)
    names = dict(model.named_parameters())
    for name, parameter in fresh.named_parameters():
        for key, value in optimizer.state[names[name]].items():
            assert torch.equal(other.state[parameter][key], value)


@pytest.mark.parametrize("nested", [True, False])
def test_what_torch_wrote_is_read(trained, tmp_path: Path, nested: bool):
    model, optimizer = trained
    state = model.state_dict()
    given = {
        "model": state,
        "optim": get_optimizer_state_dict(model, optimizer, options=FLAT),
    }
    dcp.save(given if nested else state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    found = open_tensors(tmp_path / "dcp")
    assert set(found.infos) == set(state)
    assert all(torch.equal(found.read(name), state[name]) for name in state)
    target = write(Model(), 2, tmp_path / "new")
    shift = load_file(target / "buffers_1.safetensors")["shift"]
    recut(routing(2), tmp_path / "dcp", target, target)
    assert torch.equal(load_file(target / "buffers_1.safetensors")["shift"], shift)
    if nested:
        groups = json.loads((target / "optimizer_0.json").read_text())["groups"]
        assert [group["settings"]["weight_decay"] for group in groups] == [0.01, 0.0]


def read_all(folder: Path) -> None:
    found = open_tensors(folder)
    for name in found.infos:
        found.read(name)


class Code:
    """What runs something when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (print, ("it ran",))


def test_code_in_the_table_of_contents_is_not_run(tmp_path: Path, capsys):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Code()))
    with pytest.raises(PipelineError, match=r"holds code \(builtins.print\), which is not run"):
        open_tensors(tmp_path)
    assert capsys.readouterr().out == ""


def test_code_among_the_numbers_is_not_run(trained, tmp_path: Path, capsys):
    state = {"model": trained[0].state_dict(), "training": {"step": Code()}}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    capsys.readouterr()
    target = write(Model(), 2, tmp_path / "new")
    before = contents(target)
    with pytest.raises(PipelineError, match="cannot read"):
        recut(routing(2), tmp_path / "dcp", target, target)
    assert capsys.readouterr().out == ""
    assert contents(target) == before


@pytest.mark.parametrize("damage", ["table", "data", "other"])
def test_a_damaged_one_is_refused(trained, tmp_path: Path, damage: str):
    folder = tmp_path / "dcp"
    dcp.save(trained[0].state_dict(), checkpoint_id=folder, no_dist=True)
    table = (folder / ".metadata").read_bytes()
    if damage == "table":
        (folder / ".metadata").write_bytes(table[: len(table) // 2])
    elif damage == "other":
        (folder / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    else:
        data = folder / "__0_0.distcp"
        data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(PipelineError, match=r"cannot read|no table of contents"):
        read_all(folder)
