"""Replicas of a pipeline, with whole and with divided parameters, against one process."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.functional.exports import export
from tests.functional.processes import run
from tests.functional.test_training import ACCIDENTS, module_of

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dropout, norm):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 7), nn.GELU(), nn.Linear(7, 6)) for _ in range(4)
        )
        self.norm = nn.BatchNorm1d(6) if norm else nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.drop(self.embed(ids).mean(1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x) * self.scale)

def build():
    torch.manual_seed(0)
    return Net(0.0, norm=False)

def build_random():
    torch.manual_seed(0)
    return Net(0.3, norm=True)

def example_inputs(batch_size):
    return next(batches(batch_size))[0]

def loss(output, targets):
    return nn.functional.cross_entropy(output, targets)

def batches(batch_size):
    while True:
        ids = torch.randint(9, (batch_size, 5))
        yield (ids,), (ids[:, 0],)
"""
# 13 rows: seven and six for two replicas, in micro-batches of 3, 3, 1 and of 2, 2, 2.
UNEVEN = (
    *("--steps", "5", "--lr", "0.05", "--clip", "0.3"),
    *("--accumulate", "2", "--microbatches", "3", "--batch-size", "13"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("replicas") / "replicated_net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    """Return an export whose tied weight and whose list of blocks are cut apart."""
    out = source.parent / "out"
    export(f"{source}:build", 2, out, batch_size=4)
    return out


def train(folder: Path, name: str, *more: str, replicas: int = 2, **environment: str) -> str:
    """Train from the folder above, with checkpoints in ``name`` and losses in ``name.json``."""
    command = [str(folder / "launch.sh"), "train.py", *more, "--checkpoint-dir", name]
    report = ("--report", f"{name}.json", "--timeout", "60")
    environment["REPLICAS"] = str(replicas)
    return run([*command, *report], folder=folder.parent, limit_s=110, **environment)


def losses(folder: Path, name: str) -> list[float]:
    found: list[float] = json.loads((folder.parent / f"{name}.json").read_text())["losses"]
    return found


def one_process(source: Path, rows: int = 13) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Return losses and weights of what ``UNEVEN`` asks for, on the model as it is."""
    module = module_of(source)
    model = module.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    found = []
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batches = module.batches(rows)
        for _ in range(5):
            optimizer.zero_grad()
            total = 0.0
            for _ in range(2):
                (ids,), (targets,) = next(batches)
                loss = module.loss(model(ids), targets) / 2
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            found.append(total)
    return found, model.state_dict()


def assert_trained(checkpoint: Path, expected: dict[str, torch.Tensor]) -> None:
    seen = set()
    for index in range(2):
        for name, tensor in load_file(checkpoint / f"stage_{index}.safetensors").items():
            torch.testing.assert_close(tensor, expected[name], atol=2e-6, rtol=0)
            seen.add(name)
    assert {"embed.weight", "head.weight", "scale", "blocks.3.2.bias"} <= seen


@pytest.mark.timeout(120)
@pytest.mark.parametrize("sharding", ["replicate", "fsdp"])
def test_replicas_equal_one_process(source: Path, folder: Path, sharding: str):
    """Uneven rows, accumulation, clipping, a tied weight over stages, a parameter of one number."""
    train(folder, sharding, *UNEVEN, "--sharding", sharding)
    expected, weights = one_process(source)
    assert losses(folder, sharding) == pytest.approx(expected, rel=1e-6)
    assert_trained(folder.parent / sharding / "step_5", weights)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("sharding", ["replicate", "fsdp"])
def test_more_replicas_than_rows_still_count_each_row_once(
    source: Path, folder: Path, sharding: str
):
    name = f"few-{sharding}"
    steps = (*UNEVEN[:6], "--accumulate", "2", "--microbatches", "2", "--batch-size", "2")
    train(folder, name, *steps, "--sharding", sharding, replicas=3)
    expected, weights = one_process(source, rows=2)
    assert losses(folder, name) == pytest.approx(expected, rel=1e-6)
    assert_trained(folder.parent / name / "step_5", weights)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_checkpoint_of_either_kind_is_resumed_by_both(source: Path, folder: Path):
    whole = folder.parent / "whole"
    train(folder, "whole", *UNEVEN, "--save-every", "2", "--sharding", "fsdp")
    names = sorted(path.name for path in (whole / "step_5").iterdir())
    kinds = ("optimizer_{}.json", "optimizer_{}.safetensors", "stage_{}.safetensors")
    assert names == sorted(["training.json", *(k.format(i) for k in kinds for i in range(2))])
    for name, replicas, more in (
        ("again", 2, ("--sharding", "fsdp")),
        ("replicated", 2, ()),
        ("alone", 1, ()),
    ):
        train(folder, name, *UNEVEN, "--resume", "whole/step_2", *more, replicas=replicas)
        assert losses(folder, name) == pytest.approx(losses(folder, "whole")[2:], rel=1e-6)
    for name in names:
        first, second = whole / "step_5" / name, folder.parent / "again" / "step_5" / name
        assert first.read_bytes() == second.read_bytes(), name
    merged = folder.parent / "merged.pt"
    command = [sys.executable, str(folder / "checkpoint.py"), "merge", str(whole / "step_5")]
    run([*command, "-o", str(merged)], folder=folder.parent)
    model = module_of(source).build()
    model.load_state_dict(torch.load(merged, weights_only=True), strict=True)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("sharding", ["replicate", "fsdp"])
def test_a_killed_rank_of_the_second_replica_restarts_to_the_same_end(source: Path, sharding: str):
    """Dropout and BatchNorm: every replica has numbers and statistics of its own."""
    out = source.parent / f"random-{sharding}"
    export(f"{source}:build_random", 2, out, batch_size=4)
    with (out / "data.py").open("a") as file:
        file.write(ACCIDENTS)
    options = ("--steps", "8", "--save-every", "2", "--eval-every", "4", "--sharding", sharding)
    train(out, f"calm-{sharding}", *options)
    said = train(out, f"killed-{sharding}", *options, ACCIDENT="kill@3:5", RESTARTS="1")
    assert "step_4 after step 4" in said
    first = source.parent / f"calm-{sharding}" / "step_8"
    for path in sorted(first.iterdir()):
        other = source.parent / f"killed-{sharding}" / "step_8" / path.name
        assert path.read_bytes() == other.read_bytes(), path.name


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_loader_that_is_told_its_replica_yields_its_own_rows(source: Path, folder: Path):
    own = source.parent / "own"
    shutil.copytree(folder, own)
    data = (own / "data.py").read_text()
    head = "def batches(batch_size: int)"
    assert head in data
    told = data.replace(head, "def batches(batch_size: int, replica: int, replicas: int)")
    body = """
_all = batches


def batches(batch_size: int, replica: int, replicas: int):
    first, rows = (0, 7) if replica == 0 else (7, 6)
    assert (batch_size, replicas) == (rows, 2)
    for (ids,), (targets,) in _all(13, replica, replicas):
        yield (ids[first : first + rows],), (targets[first : first + rows],)
"""
    (own / "data.py").write_text(told + body)
    train(own, "told", *UNEVEN)
    assert losses(own, "told") == pytest.approx(one_process(source)[0], rel=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_inference_deals_rows_out_and_returns_them_in_order(source: Path, folder: Path):
    ids = torch.randint(9, (37, 5))
    save_file({"ids": ids}, folder.parent / "ids.safetensors")
    command = [str(folder / "launch.sh"), "infer.py", "--inputs", "ids.safetensors"]
    more = ("--output", "out.safetensors", "--microbatches", "2", "--batch-size", "8")
    run([*command, *more], folder=folder.parent, REPLICAS="2", limit_s=100)
    (found,) = load_file(folder.parent / "out.safetensors").values()
    with torch.no_grad():
        torch.testing.assert_close(found, module_of(source).build()(ids), atol=1e-6, rtol=0)
