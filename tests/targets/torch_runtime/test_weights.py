from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from autosplit.targets.templates.torch.pipeline import (
    PipelineError,
    load_stage,
    stage_tensors,
    tensorfiles,
)
from autosplit.targets.templates.torch.pipeline.weights import stage_files, write_files


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("hidden", torch.randn(3), persistent=False)


def test_what_is_saved_is_loaded(tmp_path):
    one, other = Stage(), Stage()
    one.norm.num_batches_tracked += 5
    write_files(stage_files(one, 3), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "buffers_3.safetensors",
        "stage_3.safetensors",
    ]
    assert "b.weight" not in load_file(tmp_path / "stage_3.safetensors")
    load_stage(other, 3, tmp_path)
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
    assert torch.equal(other.hidden, one.hidden)
    assert other.b.weight is other.a.weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_large_tensors_are_copied_in_pieces(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(tensorfiles, "PIECE_BYTES", 10)
    tensors = {
        "flat": torch.randn(37).mul(3).to(dtype),
        "wide": torch.randn(5, 3, 2).mul(3).to(dtype),
        "number": torch.tensor(3).to(dtype),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    file = tensorfiles.SafetensorsFiles("a", [tmp_path / "a.safetensors"])
    for name, tensor in tensors.items():
        found = torch.zeros_like(tensor)
        file.copy(name, found)
        assert torch.equal(found, tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("a.bias"), "lacks a.bias"),
        (lambda t: t.update(new=torch.ones(1)), "has the unknown new"),
        (lambda t: t.update({"a.bias": torch.ones(3)}), r"a.bias is float32 of shape \(3,\)"),
        (lambda t: t.update({"a.bias": torch.ones(2).half()}), "a.bias is float16"),
    ],
    ids=["missing", "unknown", "shape", "dtype"],
)
def test_other_weights_are_refused(tmp_path, change, message):
    stage = Stage()
    tensors = {name: tensor.clone() for name, tensor in stage_tensors(stage).items()}
    change(tensors)
    write_files(stage_files(stage, 0), tmp_path)
    save_file(tensors, tmp_path / "stage_0.safetensors")
    with pytest.raises(PipelineError, match=message):
        load_stage(stage, 0, tmp_path)


@pytest.mark.parametrize("text", [None, b"", b"\x10\0\0\0\0\0\0\0{}"])
def test_missing_and_broken_files_are_refused(tmp_path, text):
    if text is not None:
        (tmp_path / "stage_0.safetensors").write_bytes(text)
    with pytest.raises(PipelineError, match=r"cannot read|does not exist"):
        load_stage(Stage(), 0, tmp_path)
