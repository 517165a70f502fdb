"""Long training as people live with it: interrupted, resumed, clipped, and equal to one process."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from tests.functional.exports import export
from tests.functional.processes import run

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.inner = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU())
        self.drop = nn.Dropout(dropout)
        self.outer = nn.Linear(12, 6)
        self.head = nn.Linear(6, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        return self.head(x + self.outer(self.drop(self.inner(x))))

def build():
    torch.manual_seed(0)
    return Net(0.0)

def build_random():
    torch.manual_seed(0)
    return Net(0.3)

def example_inputs(batch_size):
    return next(batches(batch_size))[0]

def loss(output, targets):
    return nn.functional.cross_entropy(output, targets)

def batches(batch_size):
    while True:
        ids = torch.randint(9, (batch_size, 5))
        yield (ids,), (ids[:, 0],)
"""
ACCIDENTS = """

import os
import signal
import time

_undisturbed = batches
_drawn = 0


def batches(batch_size: int) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    global _drawn
    for batch in _undisturbed(batch_size):
        _drawn += 1
        what, _, when = os.environ.get("ACCIDENT", "").partition("@")
        first_time = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        if when == f"{os.environ['RANK']}:{_drawn}" and first_time:
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "hang":
                time.sleep(1000)
            if what == "raise":
                raise ValueError("a broken file")
            if what == "stop":
                os.kill(os.getppid(), signal.SIGTERM)
            if what in ("SIGTERM", "SIGINT"):
                os.kill(os.getpid(), signal.Signals[what])
                time.sleep(3)  # torchrun's own signal after a failure ends a rank sooner
            if what == "twice":
                for _ in range(2):
                    os.kill(os.getpid(), signal.SIGTERM)
                    time.sleep(1)
                time.sleep(1000)
        yield batch


eval_batches = _undisturbed
"""
COMMON = (
    *("--steps", "20", "--lr", "0.01", "--lr-schedule", "cosine", "--warmup", "3"),
    *("--clip", "0.5", "--save-every", "5"),
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.py"
    path.write_text(MODEL)
    return path


@pytest.fixture(scope="module")
def folder(source: Path) -> Path:
    """Return an export with dropout whose data may fail as the environment says."""
    out = source.parent / "out"
    export(f"{source}:build_random", 2, out, batch_size=4)
    with (out / "data.py").open("a") as file:
        file.write(ACCIDENTS)
    return out


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Path:
    """Return the folder of the checkpoints of a run that nothing happened to."""
    train(folder, "calm", "--report", "calm.json", "--eval-every", "4")
    return folder.parent / "calm"


def train(folder: Path, name: str, *more: str, fails: bool = False, **environment: str) -> str:
    """Run the launcher from the folder above, as a caller would."""
    command = [str(folder / "launch.sh"), *COMMON, "--checkpoint-dir", name, *more]
    return run(command, folder=folder.parent, fails=fails, limit_s=90, **environment)


def assert_same(first: Path, second: Path) -> None:
    """Both checkpoints hold the same bits, optimizer and all."""
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    assert {"optimizer_0.safetensors", "optimizer_1.json", "training.json"} < set(names)
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.timeout(200)
def test_a_resumed_run_has_the_same_losses_to_the_last_bit(folder: Path, undisturbed: Path):
    again = ("--resume", "calm/step_10", "--report", "again.json", "--keep", "2")
    output = train(folder, "again", *again, "--async-save")
    assert "after step 10" in output
    losses = json.loads((folder.parent / "calm.json").read_text())["losses"]
    assert len(losses) == 20
    assert json.loads((folder.parent / "again.json").read_text())["losses"] == losses[10:]
    assert_same(undisturbed / "step_20", folder.parent / "again" / "step_20")
    kept = sorted(path.name for path in (folder.parent / "again").iterdir())
    assert kept == ["step_15", "step_20"]


@pytest.mark.timeout(200)
def test_a_killed_rank_is_named_and_training_restarts_from_the_checkpoint(
    folder: Path, undisturbed: Path
):
    output = train(folder, "killed", ACCIDENT="kill@1:7", RESTARTS="1")
    assert "(exitcode: -9) local_rank: 1" in output
    assert "step_5 after step 5" in output
    assert_same(undisturbed / "step_20", folder.parent / "killed" / "step_20")


@pytest.mark.timeout(200)
def test_sigterm_finishes_the_step_and_saves(folder: Path, undisturbed: Path):
    output = train(folder, "stopped", "--async-save", ACCIDENT="stop@0:7")
    assert output.endswith("stopped as asked after step 7\n")
    assert (folder.parent / "stopped" / "step_7").is_dir()
    train(folder, "stopped", "--resume", "auto")
    assert_same(undisturbed / "step_20", folder.parent / "stopped" / "step_20")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("accident", ["SIGTERM@1:7", "SIGINT@0:7"])
def test_a_signal_to_one_rank_stops_all_after_the_step(folder: Path, accident: str):
    name = f"alone-{accident[:4]}"
    assert "stopped as asked after step 7\n" in train(folder, name, ACCIDENT=accident)
    assert (folder.parent / name / "step_7" / "training.json").is_file()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_second_signal_ends_a_rank_at_once(folder: Path):
    output = train(folder, "twice", fails=True, ACCIDENT="twice@1:7")
    assert output.endswith("error: rank 1: ended at once by a second SIGTERM\n")
    assert [path.name for path in (folder.parent / "twice").iterdir()] == ["step_5"]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("accident", "last"),
    [
        ("kill@1:2", "error: rank 1 was ended by SIGKILL\n"),
        ("raise@0:2", "/data.py, in batches: ValueError: a broken file\n"),
        ("hang@1:2", "in batches, and others waited for it in vain\n"),
    ],
)
def test_the_last_line_names_the_rank_at_fault(folder: Path, accident: str, last: str):
    shutil.rmtree(folder.parent / "failed", ignore_errors=True)
    output = train(folder, "failed", "--timeout", "5", fails=True, ACCIDENT=accident)
    assert output.endswith(last)
    if "hang" in accident:
        assert "error: rank 1 is at line " in output
    assert output.count("Traceback") == ("raise" in accident)


@pytest.mark.timeout(100)
def test_checkpoints_of_two_runs_are_not_mixed(folder: Path, undisturbed: Path):
    output = train(folder, "calm", fails=True)
    assert output.endswith(
        "holds step_20 of an earlier run: pass --resume auto to go on from it, or another "
        "--checkpoint-dir\n"
    )
    assert "Traceback" not in output


def module_of(source: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("training_net", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["training_net"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(200)
def test_clipping_accumulation_and_recomputation_equal_one_process(source: Path):
    """The tied weight, held by two stages, counts once in the norm."""
    out = source.parent / "exact"
    export(f"{source}:build", 2, out, batch_size=4)
    data = (out / "data.py").read_text()
    edited = data.replace("AdamW(parameters, lr=lr)", "SGD(parameters, lr=lr, momentum=0.9)")
    (out / "data.py").write_text(edited)
    options = ("--steps", "3", "--lr", "0.5", "--warmup", "2", "--clip", "0.1")
    parts = ("--accumulate", "2", "--microbatches", "3", "--batch-size", "12")
    run(
        [str(out / "launch.sh"), *options, *parts, "--recompute", "all", "--checkpoint-dir", "ck"],
        folder=out,
    )
    module = module_of(source)
    model = module.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        batches = module.batches(12)
        for factor in (0.5, 1.0, 1.0):
            optimizer.zero_grad()
            for _ in range(2):
                (ids,), (targets,) = next(batches)
                for rows, labels in zip(ids.split(4), targets.split(4), strict=True):
                    (module.loss(model(rows), labels) / 6).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.param_groups[0]["lr"] = 0.5 * factor
            optimizer.step()
    expected = model.state_dict()
    seen = set()
    for index in range(2):
        for name, tensor in load_file(out / "ck" / "step_3" / f"stage_{index}.safetensors").items():
            torch.testing.assert_close(tensor, expected[name], atol=1e-6, rtol=0)
            seen.add(name)
    assert {"embed.weight", "head.weight"} & seen
    assert "inner.1.running_mean" in seen
