"""What train.py computes in half precision, in evaluation and on own data, as one process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.functional.exports import export
from tests.functional.processes import run
from tests.functional.test_training import MODEL, module_of

OWN_DATA = """
from torch.utils.data import DataLoader, TensorDataset


def batches(batch_size):
    # Two whole batches and one of three rows, then again from the beginning.
    ids = torch.arange(19 * 5).view(19, 5) * 7 % 9
    weights = torch.linspace(0.5, 2, 19)
    rows = TensorDataset(ids, ids[:, 0], weights)
    for ids, first, weight in DataLoader(rows, batch_size, shuffle=True, num_workers={workers}):
        yield {{"ids": ids}}, (first, weight, 0.5)


def loss(output, first, weight, factor):
    each = nn.functional.cross_entropy(output, first, reduction="none")
    return (each * weight).mean() * factor


def optimizer(parameters, lr):
    matrices = [p for p in parameters if p.dim() > 1]
    groups = [
        {{"params": matrices, "weight_decay": 0.1}},
        {{"params": [p for p in parameters if p.dim() < 2], "lr": lr * 3, "weight_decay": 0.0}},
    ]
    return torch.optim.SGD(groups, lr=lr, momentum=0.9)
"""
EVALUATION = """

def eval_batches(batch_size):
    ids = torch.arange(29 * 5).view(29, 5) * 5 % 9
    for part in ids.split(batch_size):
        yield (part,), (part[:, 0],)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loop") / "net.py"
    path.write_text(MODEL)
    return path


def launched(folder: Path, *options: str, **environment: str) -> Path:
    """Train; return the folder of checkpoints and logs."""
    where = ("--checkpoint-dir", "run", "--log-dir", "run", "--timeout", "60")
    run(["./launch.sh", "train.py", *options, *where], folder=folder, limit_s=150, **environment)
    return folder / "run"


def logged(folder: Path, name: str) -> list[float]:
    lines = map(json.loads, (folder / "steps.jsonl").read_text().splitlines())
    return [line[name] for line in lines if name in line]


def saved(checkpoint: Path) -> dict[str, Tensor]:
    """Return the tensors of both stages."""
    return {
        name: tensor
        for stage in range(2)
        for name, tensor in load_file(checkpoint / f"stage_{stage}.safetensors").items()
    }


def assert_trained(checkpoint: Path, model: nn.Module, tolerance: float) -> None:
    found, expected = saved(checkpoint), model.state_dict()
    assert {"embed.weight", "inner.1.bias", "outer.bias"} <= set(found)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], atol=tolerance, rtol=tolerance)


# ---------------------------------------------------------------- evaluation


@pytest.mark.timeout(200)
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_evaluation_is_that_of_one_process(source: Path, tmp_path: Path, replicas: int):
    """29 rows in four batches, the last of five: dropout is off, BatchNorm does not learn."""
    out = tmp_path / "out"
    export(f"{source}:build_random", 2, out, batch_size=4)
    with (out / "data.py").open("a") as file:
        file.write(EVALUATION)
    options = ("--steps", "4", "--eval-every", "2", "--save-every", "2", "--lr", "0.02")
    sizes = ("--batch-size", "8", "--microbatches", "3")
    folder = launched(out, *options, *sizes, REPLICAS=str(replicas))
    losses = []
    for step in (2, 4):
        model = module_of(source).build_random().eval()
        # Neither stage holds what only the other one uses.
        model.load_state_dict(saved(folder / f"step_{step}"), strict=False)
        ids = torch.arange(29 * 5).view(29, 5) * 5 % 9
        with torch.no_grad():
            losses.append(nn.functional.cross_entropy(model(ids), ids[:, 0]).item())
    assert logged(folder, "evaluation_loss") == pytest.approx(losses, rel=1e-6)
    assert losses[0] != losses[1]
    assert len(logged(folder, "rows_per_s")) == 4


# ---------------------------------------------------------------- half precision


def half_precision(source: Path, kind: str, steps: int) -> tuple[nn.Module, list[float], Any]:
    """Train in one process with torch's own autocast and scaler; return model, losses, scaler."""
    module = module_of(source)
    model = module.build()
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[kind]
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "fp16")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batches = module.batches(12)
        for _ in range(steps):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(2):
                (ids,), (targets,) = next(batches)
                for rows, labels in zip(ids.split(4), targets.split(4), strict=True):
                    with torch.autocast("cpu", dtype=dtype):
                        loss = module.loss(model(rows), labels) * 30
                    scaler.scale(loss / 6).backward()
                    total += loss.item() / 6
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            losses.append(total)
    return model, losses, scaler


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["fp16", pytest.param("bf16", marks=pytest.mark.slow)])
def test_half_precision_is_that_of_one_process(source: Path, tmp_path: Path, kind: str):
    """The loss is so large that fp16 overflows first: all ranks leave the same steps out."""
    out = tmp_path / "out"
    export(f"{source}:build", 2, out, batch_size=4)
    text = (out / "data.py").read_text()
    text = text.replace("AdamW(parameters, lr=lr)", "SGD(parameters, lr=lr, momentum=0.9)")
    text = text.replace("SOURCE.loss(output, *targets)", "SOURCE.loss(output, *targets) * 30")
    (out / "data.py").write_text(text)
    options = ("--autocast", kind, "--lr", "0.02", "--clip", "0.5", "--save-every", "5")
    sizes = ("--accumulate", "2", "--microbatches", "3", "--batch-size", "12")
    folder = launched(out, "--steps", "10", *options, *sizes)
    model, losses, scaler = half_precision(source, kind, 10)
    tolerance = {"fp16": 2e-3, "bf16": 2e-2}[kind]
    assert logged(folder, "loss") == pytest.approx(losses, rel=tolerance)
    assert_trained(folder / "step_10", model, tolerance)
    state = json.loads((folder / "step_10" / "training.json").read_text())
    if kind == "fp16":
        expected = scaler.state_dict()
        assert state["loss_scale"] == expected["scale"] < 65536
        assert state["good_steps"] == expected["_growth_tracker"] > 1


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_resumed_fp16_run_goes_on_with_its_scale(source: Path, tmp_path: Path):
    """Dropout, accumulation, a schedule and its warm-up: all to the last bit."""
    out = tmp_path / "out"
    export(f"{source}:build_random", 2, out, batch_size=4)
    text = (out / "data.py").read_text()
    text = text.replace("SOURCE.loss(output, *targets)", "SOURCE.loss(output, *targets) * 30")
    (out / "data.py").write_text(text)
    options = ("--autocast", "fp16", "--lr-schedule", "cosine", "--warmup", "4", "--steps", "8")
    sizes = ("--accumulate", "2", "--microbatches", "3", "--batch-size", "11")
    launched(out, *options, *sizes, "--save-every", "3")
    first = (out / "run").rename(out / "first")
    again = launched(out, *options, *sizes, "--resume", "first/step_3")
    assert logged(again, "loss") == logged(first, "loss")[3:]
    for path in sorted((first / "step_8").iterdir()):
        assert (again / "step_8" / path.name).read_bytes() == path.read_bytes(), path.name
    assert json.loads((again / "step_8" / "training.json").read_text())["loss_scale"] < 65536


# ---------------------------------------------------------------- data.py of a user


def own_batches(module: ModuleType, workers: int) -> Iterator[Any]:
    """Yield the batches of the edited data.py without end."""
    while True:
        yield from module.batches(8)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_own_data_loss_and_parameter_groups(source: Path, tmp_path: Path, workers: int):
    """The last batch has three rows for four micro-batches, and the loader ends before training."""
    out = tmp_path / "out"
    # A micro-batch of one row has no statistics.
    layered = source.with_name("layered.py")
    layered.write_text(MODEL.replace("BatchNorm1d", "LayerNorm"))
    export(f"{layered}:build", 2, out, batch_size=4)
    own = OWN_DATA.format(workers=workers)
    with (out / "data.py").open("a") as file:
        file.write(own)
    options = ("--steps", "7", "--lr", "0.05", "--lr-schedule", "linear", "--warmup", "2")
    folder = launched(out, *options, "--batch-size", "8", "--microbatches", "4")
    model = module_of(layered).build()
    alone = ModuleType("own_data")
    exec("import torch\nfrom torch import nn\n" + own, alone.__dict__)
    optimizer = alone.optimizer(list(model.parameters()), 0.05)
    torch.manual_seed(0)
    losses = []
    batches = own_batches(alone, workers)
    for factor in (0.5, 1, 1, 0.8, 0.6, 0.4, 0.2):
        inputs, (first, weight, half) = next(batches)
        optimizer.zero_grad()
        total = 0.0
        rows = len(first)
        size = -(-rows // 4)
        parts = zip(*(t.split(size) for t in (inputs["ids"], first, weight)), strict=True)
        for ids, labels, weights in parts:
            loss = alone.loss(model(ids), labels, weights, half) * len(ids) / rows
            loss.backward()
            total += loss.item()
        for group, rate in zip(optimizer.param_groups, (0.05, 0.15), strict=True):
            group["lr"] = rate * factor
        optimizer.step()
        losses.append(total)
    assert logged(folder, "loss") == pytest.approx(losses, rel=1e-5)
    assert_trained(folder / "step_7", model, 1e-5)
