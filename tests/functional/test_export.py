"""An export used as its README says: train, save, merge, split, infer, with launch.sh."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.functional.exports import export
from tests.functional.processes import run

MODEL = """
from dataclasses import dataclass
import torch
from torch import nn

@dataclass
class Scores:
    logits: torch.Tensor
    hidden: tuple

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.scale = nn.Parameter(torch.full((6,), 0.8))
        self.norms = nn.ModuleList(nn.BatchNorm1d(6) for _ in range(2))
        self.inner = nn.Linear(6, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.linspace(0, 1, 6), persistent=False)
        self.frozen = nn.Parameter(torch.ones(6), requires_grad=False)
        self.never = nn.Parameter(torch.ones(2))

    def forward(self, ids, mask=None, flag=False):
        x = self.embed(ids).mean(1) * self.scale + self.shift
        first = torch.relu_(self.norms[0](x))
        x = self.inner(first) * self.frozen
        if mask is not None:
            x = x * mask[:, None]
        x = torch.relu(self.norms[1](x)) + self.shift
        return Scores(self.head(x), (first, x.detach()))

def build():
    torch.manual_seed(0)
    return Net()

def example_inputs(batch_size):
    return next(batches(batch_size))[0]

def loss(output, targets):
    assert isinstance(output, Scores)
    return nn.functional.cross_entropy(output.logits, targets) + output.hidden[0].square().mean()

def batches(batch_size):
    generator = torch.Generator().manual_seed(1)
    while True:
        ids = torch.randint(9, (batch_size, 5), generator=generator)
        mask = torch.rand(batch_size, generator=generator)
        yield ((ids,), {"mask": mask}), (ids[:, 0],)
"""
ROWS, MICROBATCHES = 14, 4


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    """Return an export of two stages, moved after it was written."""
    export(f"{source}:build", 2, source.parent / "made", batch_size=4)
    out = source.parent / "out"
    shutil.move(source.parent / "made", out)
    data = (out / "data.py").read_text()
    # AdamW would divide by tiny gradients and blow up differences in the last bit.
    edited = data.replace("AdamW(parameters, lr=lr)", "SGD(parameters, lr=lr, momentum=0.9)")
    assert edited != data
    (out / "data.py").write_text(edited)
    return out


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """Return the folder after two training steps of an uneven batch."""
    output = run(
        [
            *("./launch.sh", "train.py", "--steps", "2", "--lr", "0.01"),
            *("--batch-size", str(ROWS), "--microbatches", str(MICROBATCHES)),
            *("--dump", "dump", "--checkpoint-dir", "saved", "--report", "report.json"),
        ],
        folder=folder,
    )
    assert re.search(r"^step 2/2  loss \d+\.\d+  \d+\.\d+ s$", output, re.MULTILINE)
    return folder


@pytest.fixture(scope="module")
def reference(source: Path):
    """Return the model after the same two steps in one process, and its last losses."""
    spec = importlib.util.spec_from_file_location("reference_net", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["reference_net"] = module
    spec.loader.exec_module(module)
    model = module.build()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.01, momentum=0.9)
    batches = module.batches(ROWS)
    for _ in range(2):
        ((ids,), kwargs), (targets,) = next(batches)
        optimizer.zero_grad()
        losses = []
        for parts in zip(ids.split(4), kwargs["mask"].split(4), targets.split(4), strict=True):
            loss = module.loss(model(parts[0], mask=parts[1]), parts[2])
            (loss * len(parts[0]) / ROWS).backward()
            losses.append(float(loss.detach()))
        optimizer.step()
    return model, losses


@pytest.mark.timeout(200)
def test_training_equals_one_process(trained: Path, reference):
    model, losses = reference
    found = {}
    for path in (trained / "dump").iterdir():
        found.update(load_file(path))
    assert [float(found[f"loss:{k}"]) for k in range(4)] == pytest.approx(losses, abs=1e-6)
    report = json.loads((trained / "report.json").read_text())
    assert report["losses"][1] == pytest.approx(
        sum(loss * rows for loss, rows in zip(losses, (4, 4, 4, 2), strict=True)) / ROWS
    )
    assert len(report["step_s"]) == 2
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers())
    gradients = {key.split(":")[2]: v for key, v in found.items() if key.startswith("grad")}
    expected = {name for name, p in parameters.items() if p.grad is not None}
    assert set(gradients) == expected
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, parameters[name].grad, atol=1e-6, rtol=0)
    for key, tensor in found.items():
        if key.startswith("buffer"):
            torch.testing.assert_close(tensor, buffers[key.split(":")[2]], atol=1e-6, rtol=0)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_merged_weights_load_strictly(trained: Path, reference, suffix: str):
    model, _ = reference
    run(
        [sys.executable, "checkpoint.py", "merge", "saved/step_2", "-o", f"merged.{suffix}"],
        folder=trained,
    )
    file = trained / f"merged.{suffix}"
    state = load_file(file) if suffix == "safetensors" else torch.load(file, weights_only=True)
    assert set(state) == set(model.state_dict())
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(state[name], tensor, atol=1e-6, rtol=0)
    if suffix == "pt":
        assert state["head.weight"].data_ptr() == state["embed.weight"].data_ptr()
    split = [sys.executable, "checkpoint.py", "split", file.name, "-o", f"from_{suffix}"]
    run(split, folder=trained)
    for path in sorted((trained / "saved" / "step_2").glob("stage_*")):
        again = load_file(trained / f"from_{suffix}" / path.name)
        saved = load_file(path)
        assert again.keys() == saved.keys()
        assert all(torch.equal(again[name], tensor) for name, tensor in saved.items())


@pytest.mark.timeout(200)
def test_untrained_weights_merge_bit_for_bit(folder: Path, source: Path):
    out = folder / "untrained.safetensors"
    run([sys.executable, "checkpoint.py", "merge", "-o", out.name], folder=folder)
    spec = importlib.util.spec_from_file_location("fresh_net", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["fresh_net"] = module
    spec.loader.exec_module(module)
    for name, tensor in module.build().state_dict().items():
        assert torch.equal(load_file(out)[name], tensor)


@pytest.mark.timeout(200)
def test_inference_keeps_every_row_in_order(trained: Path, reference):
    model, _ = reference
    ids = torch.arange(11 * 5).view(11, 5) % 9
    mask = torch.linspace(0, 1, 11)
    save_file({"ids": ids, "mask": mask}, trained / "in.safetensors")
    output = run(
        [
            *("./launch.sh", "infer.py", "--inputs", "in.safetensors", "--output", "out.st"),
            *("--microbatches", "2", "--batch-size", "8", "--weights", "saved/step_2"),
        ],
        folder=trained,
    )
    assert "11 rows in" in output
    model.eval()
    with torch.no_grad():
        expected = model(ids, mask=mask)
    found = load_file(trained / "out.st")
    assert set(found) == {"logits", "hidden.0", "hidden.1"}
    torch.testing.assert_close(found["logits"], expected.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(found["hidden.1"], expected.hidden[1], atol=1e-5, rtol=0)
    model.train()


@pytest.mark.timeout(200)
def test_inference_of_1003_rows_is_the_model_to_the_last_bit(folder: Path, source: Path):
    """Micro-batches of 16, four at a time; the last holds 11 rows."""
    ids = torch.arange(1003 * 5).view(1003, 5) % 9
    mask = torch.linspace(0, 1, 1003)
    save_file({"ids": ids, "mask": mask}, folder / "many.safetensors")
    run(
        [
            *("./launch.sh", "infer.py", "--inputs", "many.safetensors", "--output", "many.out"),
            *("--microbatches", "4", "--batch-size", "64"),
        ],
        folder=folder,
    )
    spec = importlib.util.spec_from_file_location("many_net", source)
    module = importlib.util.module_from_spec(spec)
    sys.modules["many_net"] = module
    spec.loader.exec_module(module)
    model = module.build().eval()
    with torch.no_grad():
        parts = zip(ids.split(16), mask.split(16), strict=True)
        expected = torch.cat([model(rows, mask=some).logits for rows, some in parts])
    assert torch.equal(load_file(folder / "many.out")["logits"], expected)


@pytest.mark.timeout(200)
def test_mistakes_are_named(folder: Path, tmp_path: Path):
    alone = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    output = run([*alone, "train.py"], folder=folder, fails=True)
    assert "error: this pipeline needs 2 processes and 1 were started" in output
    output = run([sys.executable, "train.py"], folder=folder, fails=True)
    assert output.startswith("error: RANK is not set: start through ./launch.sh")
    broken = load_file(folder / "weights" / "stage_0.safetensors")
    save_file({**broken, "extra": torch.ones(1)}, tmp_path / "model.safetensors")
    output = run(
        [
            *(sys.executable, "checkpoint.py", "split", str(tmp_path / "model.safetensors")),
            *("-o", str(tmp_path / "w")),
        ],
        folder=folder,
        fails=True,
    )
    assert re.match(r"error: \S+ lacks 5 of the model's tensors", output)
    assert not (tmp_path / "w").exists()
    merge = [sys.executable, "checkpoint.py", "merge", "-o", str(tmp_path / "model.safetensors")]
    said = run(merge, folder=folder, fails=True)
    assert "exists" in said
    assert "hint: pass --force to replace it" in said
