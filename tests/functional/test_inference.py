"""infer.py returns what the model returns, row by row, whatever the schedule and the output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from autosplit.types import ModelRef
from tests.functional.processes import run
from tests.functional.test_schedules import exported
from tests.functional.test_training import module_of

MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))
        self.norm = nn.BatchNorm1d(6)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(6, 9)

    def forward(self, ids):
        x = self.embed(ids).mean(1)
        early = x
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        logits = self.head(self.drop(self.norm(x)))
        best = logits.argmax(1)
        return {"logits": logits, "pair": (early, best), "sure": best > 4, "count": 3, "no": None}

def build():
    torch.manual_seed(0)
    return Net()

def example_inputs(batch_size):
    return (torch.randint(9, (batch_size, 5)),)
"""
ROWS = 1003


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("planned", "stages", "schedules"),
    [
        ("1f1b", 2, ("gpipe", "1f1b")),
        ("interleaved", 4, ("interleaved", "zero-bubble")),
        ("zbv", 4, ("zbv", "dualpipev")),
    ],
)
def test_all_rows_come_back_in_order_on_the_rank_asked_for(
    tmp_path: Path, planned: str, stages: int, schedules: tuple[str, ...]
):
    """Micro-batches of 16, four at a time, and a last one of 11 rows: to the last bit."""
    source = tmp_path / "net.py"
    source.write_text(MODEL)
    ref = ModelRef(f"{source}:build", batch_size=4)
    folder = exported(ref, tmp_path, planned, ranks=2, stages=stages)
    ids = torch.arange(ROWS * 5).view(ROWS, 5) * 7 % 9
    save_file({"ids": ids}, folder / "in.safetensors")
    with torch.no_grad():
        model = module_of(source).build().eval()
        parts = [model(rows) for rows in ids.split(16)]
    expected = {
        "logits": torch.cat([part["logits"] for part in parts]),
        "pair.0": torch.cat([part["pair"][0] for part in parts]),
        "pair.1": torch.cat([part["pair"][1] for part in parts]),
        "sure": torch.cat([part["sure"] for part in parts]),
    }
    for rank, schedule in enumerate(schedules):
        command = ["./launch.sh", "infer.py", "--inputs", "in.safetensors", "--output", schedule]
        sizes = ["--microbatches", "4", "--batch-size", "64", "--schedule", schedule]
        said = run([*command, *sizes, "--output-rank", str(rank)], folder=folder, limit_s=120)
        assert "1003 rows in" in said
        assert "rows/s" in said
        found = load_file(folder / schedule)
        assert found.keys() == expected.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, expected[name]), (schedule, name)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_what_inference_refuses(tmp_path: Path):
    source = tmp_path / "net.py"
    source.write_text(MODEL)
    folder = exported(ModelRef(f"{source}:build"), tmp_path, "1f1b", ranks=2, stages=2)
    save_file({"words": torch.ones(3, 5)}, folder / "in.safetensors")
    for options, message in (
        (("--inputs", "in.safetensors"), "in.safetensors holds words; the inputs are ids\n"),
        (("--output-rank", "2"), "error: rank 0: --output-rank 2 is none of ranks 0 to 1\n"),
    ):
        said = run(["./launch.sh", "infer.py", *options], folder=folder, fails=True)
        assert said.endswith(message)
        assert "Traceback" not in said
