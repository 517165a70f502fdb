"""Weights are written one tensor at a time, in the format that safetensors reads."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from autosplit import stages
from autosplit.errors import AutosplitError
from autosplit.program import InputSpec, Node, Program, Ref, StateSpec, TensorSpec, Tree
from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.tensorfiles import TensorInfo, write_tensors
from autosplit.tracers.base import Trace
from autosplit.weights import ModelTensors, write_export, write_weights

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype):
    tensors = {
        "matrix": (torch.randn(3, 5) * 9).to(dtype),
        "transposed": (torch.randn(3, 5) * 9).to(dtype).t(),
        "scalar": torch.ones((), dtype=dtype),
        "empty": torch.ones(0, 4, dtype=dtype),
        'odd "näme" \n': torch.ones(2, dtype=dtype),
    }
    write(tmp_path / "t.safetensors", tensors)
    found = load_file(tmp_path / "t.safetensors")
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert found[name].dtype == dtype
        assert found[name].shape == tensor.shape
        assert _raw(found[name]) == _raw(tensor)


def _raw(tensor: torch.Tensor) -> list[int]:
    flat = tensor.contiguous().reshape(-1)
    return flat.view(torch.uint8).tolist()


def write(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    infos = {name: TensorInfo.of(tensor) for name, tensor in tensors.items()}
    write_tensors(path, infos, tensors.__getitem__)


def test_what_cannot_be_written_is_named(tmp_path: Path):
    with pytest.raises(PipelineError, match=r"w is complex128 of shape \(2,\), which safetensors"):
        write(tmp_path / "t", {"w": torch.ones(2, dtype=torch.complex128)})
    with pytest.raises(PipelineError, match="__metadata__ is float32"):
        write(tmp_path / "t", {"__metadata__": torch.ones(2)})
    assert not (tmp_path / "t").exists()


class Tied(nn.Module):
    """Two names of one weight, a hidden buffer, an unused parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.randn(3))
        self.b = self.a
        self.unused = nn.Parameter(torch.randn(2))
        self.register_buffer("hidden", torch.randn(3), persistent=False)


def traced() -> Trace:
    """Return a hand-made trace of ``(x * a) | (+ hidden + b + constant)``."""
    model = Tied()
    value = TensorSpec(("batch", 3), "float32")
    vector = TensorSpec((3,), "float32")
    constant = StateSpec("_constant_0", "constant", (3,), "float32", persistent=False)
    program = Program(
        nodes=(
            Node("x", "input", "x", value=value),
            *(Node(f"s_{n}", "state", n, value=vector) for n in ("a", "b", "hidden")),
            Node("s_c", "state", "_constant_0", value=vector),
            Node("m", "function", "torch.mul", (Ref("x"), Ref("s_a"), Ref("s_b")), value=value),
            Node(
                "y",
                "function",
                "torch.add",
                (Ref("m"), Ref("s_hidden"), Ref("s_b"), Ref("s_c")),
                value=value,
            ),
        ),
        calls=(),
        modules=(),
        states=(
            StateSpec("a", "parameter", (3,), "float32", requires_grad=True, aliases=("b",)),
            StateSpec("unused", "parameter", (2,), "float32", requires_grad=True),
            StateSpec("hidden", "buffer", (3,), "float32", persistent=False),
            constant,
        ),
        symbols=(),
        inputs=(InputSpec("x", ("args", 0), 0),),
        input_tree=Tree("tuple", items=(Tree("tuple", items=(Tree("value", "x"),)), Tree("dict"))),
        output_tree=Tree("value", "y"),
    )
    return Trace(
        model=model,
        args=(torch.randn(4, 3),),
        kwargs={},
        graph=torch.fx.Graph(),
        program=program,
        constants={"_constant_0": torch.arange(3.0)},
    )


def test_each_stage_gets_its_tensors_once(tmp_path: Path):
    trace = traced()
    _, routing = stages.split(trace.program, {"m": 0, "y": 1}, 2)
    write_weights(ModelTensors(trace), routing, tmp_path)
    files = {path.stem: load_file(path) for path in (tmp_path / "weights").iterdir()}
    assert {name: sorted(tensors) for name, tensors in files.items()} == {
        "stage_0": ["a", "unused"],
        "stage_1": ["b"],
        "buffers_1": ["_constant_0", "hidden"],
        "example": ["x"],
    }
    model = trace.model
    assert torch.equal(files["stage_0"]["a"], model.a)
    assert torch.equal(files["stage_1"]["b"], model.a)
    assert torch.equal(files["buffers_1"]["hidden"], model.hidden)
    assert torch.equal(files["example"]["x"], trace.args[0])


def test_a_model_without_values_leaves_no_folder(tmp_path: Path):
    trace = traced()
    trace.model.to("meta")
    _, routing = stages.split(trace.program, {"m": 0, "y": 1}, 2)
    with pytest.raises(AutosplitError, match="built without weights"):
        write_export(tmp_path / "out", (), trace, routing)
    assert list(tmp_path.iterdir()) == []
