from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import save_file

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline.source import (
    example_batches,
    load_source,
    own_loss,
    read_inputs,
)
from tests.targets.torch_runtime.tables import table


@dataclass
class Result:
    loss: torch.Tensor
    logits: torch.Tensor


@pytest.fixture
def own_imports(monkeypatch, tmp_path):
    """Forget afterwards what a test imports of its own: the files of others have those names."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("own_imports")
def test_a_file_is_imported_once_with_its_neighbours(tmp_path):
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    (tmp_path / "my-model.py").write_text("from neighbour import VALUE\nloss = VALUE\n")
    first = load_source(str(tmp_path / "my-model.py"))
    assert first.loss == 7
    assert load_source(str(tmp_path / "my-model.py")) is first


def test_what_is_gone_is_named(tmp_path):
    with pytest.raises(PipelineError, match=r"does not exist any more; edit data\.py"):
        load_source(str(tmp_path / "gone.py"))
    with pytest.raises(PipelineError, match="cannot import no_such_module"):
        load_source("no_such_module")
    assert load_source("json").dumps([]) == "[]"


def test_example_rows_are_drawn_alike_everywhere(tmp_path):
    routing = table(tmp_path)
    examples = {"x": torch.arange(6.0).view(2, 3), "labels": torch.tensor([10, 20])}
    save_file(examples, tmp_path / "example.safetensors")
    one, other = (example_batches(routing, tmp_path, 5) for _ in range(2))
    for _ in range(3):
        ((x,), kwargs), targets = next(one)
        ((y,), _), _ = next(other)
        assert torch.equal(x, y)
        assert targets == ()
        assert kwargs["flag"] is True
        rows = (kwargs["labels"] // 10 - 1).tolist()
        assert torch.equal(x, examples["x"][rows])


def test_inputs_are_read_by_name(tmp_path):
    routing = table(tmp_path)
    tensors = {"x": torch.ones(2, 3), "labels": torch.ones(2, dtype=torch.int64)}
    save_file(tensors, tmp_path / "in.safetensors")
    (x,), kwargs = read_inputs(routing, tmp_path / "in.safetensors")
    assert torch.equal(x, tensors["x"])
    assert set(kwargs) == {"labels", "flag"}
    save_file({"x": torch.ones(1)}, tmp_path / "in.safetensors")
    with pytest.raises(PipelineError, match="holds x; the inputs are x, labels"):
        read_inputs(routing, tmp_path / "in.safetensors")


def test_a_loss_is_found_in_the_output():
    loss, logits = torch.tensor(2.0), torch.full((2,), 3.0)
    assert own_loss({"loss": loss, "logits": logits}) is loss
    assert own_loss(Result(loss, logits)) is loss
    assert own_loss((loss, torch.ones(3, dtype=torch.int64))) is loss
    assert own_loss((logits, [logits, None])) == 18
    with pytest.raises(PipelineError, match=r"write a loss in data\.py"):
        own_loss(torch.ones(2, dtype=torch.int64))
