"""What is said of steps beside their prediction, and the logs that TensorBoard reads."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch

from autosplit.targets.templates.torch.pipeline.clock import Clock
from autosplit.targets.templates.torch.pipeline.eventlog import EventLog, crc32c, record
from autosplit.targets.templates.torch.pipeline.progress import Prediction


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Return a plan of four stages on two ranks."""
    memory = {"parameters_bytes": 2**29, "activations_bytes": 2**28}
    stages = [
        {"rank": rank, "forward_s": 1.0, "backward_s": backward, "memory": memory}
        for rank, backward in zip((0, 1, 1, 0), (1.0, 2.0, 1.9, 1.0), strict=True)
    ]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"step_s": 7.5, "stages": stages}))
    return path


def test_a_stage_that_was_not_planned_to_be_the_largest_is_named_with_the_one_that_was(plan: Path):
    found = Prediction.read(plan, comparable=True)
    assert found.step_s == 7.5
    assert found.bottleneck([1, 9, 1, 1]) == "stage 1 is the bottleneck"
    # As planned, within a few percent.
    assert found.bottleneck([1, 8, 9, 1]) == "stage 2 is the bottleneck"
    expected = "stage 3 is the bottleneck, where stage 1 was predicted to be"
    assert found.bottleneck([1, 1, 1, 2]) == expected
    unknown = Prediction(None, (0.0, 0.0), (0, 0))
    assert unknown.bottleneck([1, 2]) == "stage 1 is the bottleneck"


def test_memory_is_told_of_the_rank_with_most_beside_that_of_its_stages(plan: Path):
    peaks = [2**30, 2**30, 2**30, 2**31]
    found = Prediction.read(plan, comparable=True)
    # Two replicas: rank 3 is rank 1 of the second.
    assert found.memory(peaks) == "peak memory 2.00 GiB on rank 3, predicted 1.50 GiB"
    other = Prediction.read(plan, comparable=False)
    assert other.memory(peaks) == "peak memory 2.00 GiB on rank 3"


def test_a_clock_is_read_once():
    clock = Clock(torch.device("cpu"))
    with clock.running():
        sum(range(10_000))
    assert clock.read() > 0
    assert clock.read() == 0


def test_checksums_are_those_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_events_are_records_with_step_name_and_value(tmp_path: Path):
    EventLog(tmp_path).write(300, {"loss": 0.25})
    (path,) = tmp_path.glob("events.out.tfevents.*")
    content, records = path.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        records.append(content[12 : 12 + length])
        assert content[: 16 + length] == record(records[-1])
        content = content[16 + length :]
    first, second = (data[9:] for data in records)  # after the time
    assert first == b"\x1a\x0dbrain.Event:2"
    value = b"\x0a\x04loss\x15" + struct.pack("<f", 0.25)
    assert second == b"\x10\xac\x02\x2a\x0d\x0a\x0b" + value
