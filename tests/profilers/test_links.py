"""Bandwidth from the times of messages, and probing with real processes."""

import sys

import pytest

from autosplit import cluster
from autosplit.profilers.links import seconds_per_byte
from tests.functional.processes import run

SIZES = [2**16 * 4**power for power in range(6)]


def test_bandwidth_is_the_slope():
    samples = [(size, 3e-5 + size / 2e9) for size in SIZES]
    assert 1 / seconds_per_byte(samples) == pytest.approx(2e9)


def test_small_messages_do_not_count():
    samples = [(size, 3e-5 + size / (1e8 if size < 2**20 else 2e9)) for size in SIZES]
    assert 1 / seconds_per_byte(samples) == pytest.approx(2e9, rel=1e-6)


def test_times_that_do_not_grow_give_the_largest_message():
    assert seconds_per_byte([(10, 2.0), (20, 2.0), (40, 2.0)]) == pytest.approx(0.05)
    assert seconds_per_byte([(10, 2.0)]) == pytest.approx(0.2)


# ---------------------------------------------------------------- real processes

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
ABSENT = """
import os, time
if os.environ["RANK"] == "1":
    time.sleep(600)
from autosplit.cli.main import main
main()
"""
SILENT = """
import os, time
from autosplit.profilers import probe
if os.environ["RANK"] == "1":
    probe.Wire.follow = lambda wire: time.sleep(600)
from autosplit.cli.main import main
main()
"""


def test_ranks_measure_each_other(tmp_path):
    arguments = ["-m", "autosplit", "cluster", "probe", "-o", "found.toml", "--device", "cpu"]
    output = run([*TORCHRUN, "--nproc-per-node=3", *arguments], folder=tmp_path, limit_s=200)
    assert "Wrote found.toml." in output
    found = cluster.read(tmp_path / "found.toml")
    assert len(found.devices) == 3
    assert len({(device.kind, device.node, device.speed) for device in found.devices}) == 1
    assert all(device.memory_bytes > 2**20 for device in found.devices)
    assert found.default is not None
    assert 1e6 < found.default.bytes_per_s < 1e12
    assert 1e-7 < found.default.latency_s < 1


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [ABSENT, SILENT], ids=["absent", "silent"])
def test_a_rank_that_hangs_is_named(tmp_path, hanging):
    script = tmp_path / "hanging.py"
    script.write_text(hanging)
    arguments = ["cluster", "probe", "--timeout", "5s", "--no-speed", "--device", "cpu"]
    output = run(
        [*TORCHRUN, "--nproc-per-node=3", str(script), *arguments],
        folder=tmp_path,
        limit_s=200,
        fails=True,
    )
    told = [line for line in output.splitlines() if "no answer from" in line]
    assert told
    assert all("rank 1" in line and "rank 0" not in line for line in told), output
    assert not (tmp_path / "cluster.toml").exists()
