"""Files of tensors are read lazily, written one tensor at a time, and refused when damaged."""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.tensorfiles import (
    INDEX,
    TensorInfo,
    listed,
    open_tensors,
    same_bits,
    write_tensors,
)

# Names of attributes may be anything; a lone surrogate alone is no text.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    infos = {name: TensorInfo.of(tensor) for name, tensor in tensors.items()}
    write_tensors(path, infos, tensors.__getitem__)


def shards(folder: Path) -> dict[str, torch.Tensor]:
    """Write a folder of two shards and their index; return what they hold."""
    tensors = {f"h.{k}.weight": torch.randn(3, 2) for k in range(4)}
    mapping = {}
    for k, names in enumerate((list(tensors)[:2], list(tensors)[2:])):
        file = f"model-0000{k + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in names}, folder / file)
        mapping.update(dict.fromkeys(names, file))
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": mapping}))
    return tensors


def assert_holds(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    found = open_tensors(path)
    assert dict(found.infos) == {name: TensorInfo.of(each) for name, each in tensors.items()}
    assert all(same_bits(found.read(name), each) for name, each in tensors.items())


@settings(max_examples=60)
@given(names=st.lists(NAMES.filter(lambda name: name != "__metadata__"), unique=True, max_size=6))
def test_any_names_come_back(names):
    tensors = {name: torch.full((k, 2), float(k)) for k, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.safetensors"
        write(path, tensors)
        assert_holds(path, tensors)
        assert set(load_file(path)) == set(tensors)


def test_odd_and_long_names_come_back(tmp_path):
    names = ["class", "0", "a.'\"b", "__init__", "x" * 10_000, "A.w", "a.w", "import os\n"]
    tensors = {name: torch.randn(2) for name in names}
    write(tmp_path / "t.safetensors", tensors)
    assert_holds(tmp_path / "t.safetensors", tensors)
    assert len(listed(names[4:5])) < 300


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    tensors = {"b": torch.ones(2), "a": torch.zeros(3)}
    for name in ("one", "two"):
        write(tmp_path / name, tensors)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_tensor_that_is_not_what_was_announced_is_refused(tmp_path):
    with pytest.raises(PipelineError, match=r"w is float32 of shape \(3,\), not float32 of shape"):
        write_tensors(
            tmp_path / "t", {"w": TensorInfo((2,), torch.float32)}, lambda _: torch.ones(3)
        )


@pytest.mark.parametrize("protocol", ["zip", "legacy"])
def test_a_state_dict_is_read(tmp_path, protocol):
    tensors = {"a": torch.randn(3, 2), "b": torch.arange(3)}
    path = tmp_path / "model.pt"
    torch.save(tensors, path, _use_new_zipfile_serialization=protocol == "zip")
    assert_holds(path, tensors)


def test_a_folder_of_one_file_and_of_shards_is_read(tmp_path):
    tensors = shards(tmp_path)
    assert_holds(tmp_path, tensors)
    assert_holds(tmp_path / INDEX, tensors)
    (tmp_path / INDEX).unlink()
    save_file(tensors, tmp_path / "model.safetensors")
    assert_holds(tmp_path, tensors)


class Code:
    """Runs a command where it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> object:
        return os.mkdir, (str(self.file),)


def test_a_pickle_with_code_is_refused_and_not_run(tmp_path):
    torch.save({"a": Code(tmp_path / "run")}, tmp_path / "evil.pt")
    (tmp_path / "bare.pt").write_bytes(pickle.dumps({"a": Code(tmp_path / "run")}, protocol=2))
    for name in ("evil.pt", "bare.pt"):
        with pytest.raises(PipelineError, match="nothing but tensors is unpickled"):
            open_tensors(tmp_path / name)
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_with_more_than_tensors_is_refused(tmp_path):
    torch.save({"state_dict": {"a": torch.ones(1)}, "epoch": 3}, tmp_path / "c.pt")
    with pytest.raises(PipelineError, match="save what stands under 'state_dict' alone"):
        open_tensors(tmp_path / "c.pt")
    torch.save(torch.ones(1), tmp_path / "t.pt")
    with pytest.raises(PipelineError, match="no tensors by name but a Tensor"):
        open_tensors(tmp_path / "t.pt")


@pytest.mark.parametrize("kept", [0, 4, 40, 150, -1])
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_a_file_that_was_cut_off_is_refused(tmp_path, suffix, kept):
    path = tmp_path / f"model.{suffix}"
    tensors = {"a": torch.randn(30, 2), "b": torch.randn(4)}
    torch.save(tensors, path) if suffix == "pt" else save_file(tensors, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(PipelineError):
        open_tensors(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["weight_map"].pop("h.1.weight"), "lacks h.1.weight, which its shards hold"),
        (
            lambda d: d["weight_map"].update(new="model-00001-of-00002.safetensors"),
            "names new in model-00001-of-00002.safetensors, which does not hold it",
        ),
        (lambda d: d["weight_map"].update(new="gone.safetensors"), "gone.safetensors does not"),
        (lambda d: d["weight_map"].update(new="../x.safetensors"), "no file of the folder"),
        (lambda d: d.pop("weight_map"), "no weight_map"),
    ],
    ids=["lacks", "adds", "no shard", "outside", "no map"],
)
def test_a_wrong_index_is_refused(tmp_path, change, message):
    shards(tmp_path)
    data = json.loads((tmp_path / INDEX).read_text())
    change(data)
    (tmp_path / INDEX).write_text(json.dumps(data))
    with pytest.raises(PipelineError, match=message):
        open_tensors(tmp_path)


def test_a_truncated_index_is_refused(tmp_path):
    shards(tmp_path)
    (tmp_path / INDEX).write_text((tmp_path / INDEX).read_text()[:-20])
    with pytest.raises(PipelineError, match=r"cannot read .*\n.*damaged or cut off"):
        open_tensors(tmp_path)


def test_a_folder_without_weights_says_what_it_holds(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "adapter.safetensors")
    with pytest.raises(PipelineError, match=r"it holds adapter.safetensors: give one file"):
        open_tensors(tmp_path)
    with pytest.raises(PipelineError, match="does not exist"):
        open_tensors(tmp_path / "nothing.pt")
