"""Checkpoints: whole or not there, in the background the same bytes, errors raised later."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from autosplit.targets.templates.torch.pipeline import PipelineError
from autosplit.targets.templates.torch.pipeline import checkpoints as module
from autosplit.targets.templates.torch.pipeline.checkpoints import (
    Checkpoints,
    found_checkpoints,
    resume_point,
)


@pytest.fixture(autouse=True, scope="module")
def group() -> Iterator[None]:
    """Join a group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def stage() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 16))


def made(stage: nn.Module, *, background: bool = True, keep: int | None = None) -> Checkpoints:
    optimizer = torch.optim.AdamW(stage.parameters())
    stage(torch.randn(4, 16)).sum().backward()
    optimizer.step()
    return Checkpoints({0: stage}, optimizer, 0, keep, background=background)


def save_whole(checkpoints: Checkpoints, folder: Path, step: int) -> None:
    checkpoints.save(folder / f"step_{step}", {"step": step})
    checkpoints.wait()


def check_until_it_fails(checkpoints: Checkpoints) -> None:
    while True:
        checkpoints.check()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_written_in_the_background_is_what_was_there(stage, tmp_path, monkeypatch):
    begin = threading.Event()

    def late(*arguments: object) -> None:
        assert begin.wait(30)
        write(*arguments)

    write = module.write_files
    checkpoints = made(stage)
    checkpoints.background = False
    checkpoints.save(tmp_path / "at_once" / "step_1", {"step": 1})
    checkpoints.background = True
    monkeypatch.setattr(module, "write_files", late)
    checkpoints.save(tmp_path / "later" / "step_1", {"step": 1})
    for parameter in stage.parameters():
        parameter.data.fill_(7.0)
    checkpoints.check()
    assert not found_checkpoints(tmp_path / "later")
    begin.set()
    checkpoints.wait()
    assert contents(tmp_path / "later" / "step_1") == contents(tmp_path / "at_once" / "step_1")


def test_one_is_written_at_a_time_and_the_last_are_kept(stage, tmp_path):
    checkpoints = made(stage, keep=2)
    for step in range(1, 6):
        checkpoints.save(tmp_path / f"step_{step}", {"step": step})
        assert len(found_checkpoints(tmp_path)) >= min(step - 1, 2)
    checkpoints.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_4", "step_5"]
    assert checkpoints.load(tmp_path / "step_5") == {"step": 5}


@pytest.mark.parametrize("background", [False, True])
def test_a_disk_that_fills_leaves_the_checkpoint_before(stage, tmp_path, background):
    checkpoints = made(stage, background=background)
    checkpoints.save(tmp_path / "step_1", {"step": 1})
    checkpoints.wait()
    before = contents(tmp_path / "step_1")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        # Of the same step too: it is set aside until the new one is whole.
        for step in (1, 2):
            with pytest.raises(PipelineError, match=f"cannot write .*step_{step}: "):
                save_whole(checkpoints, tmp_path, step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert [path.name for path in tmp_path.iterdir()] == ["step_1"]
    assert contents(tmp_path / "step_1") == before
    checkpoints.save(tmp_path / "step_2", {"step": 2})
    checkpoints.wait()
    assert len(found_checkpoints(tmp_path)) == 2


def test_an_error_of_the_background_surfaces_in_the_next_step(stage, tmp_path):
    (tmp_path / "file").touch()
    checkpoints = made(stage)
    checkpoints.save(tmp_path / "file" / "step_1", {"step": 1})
    with pytest.raises(PipelineError, match=r"cannot write .*step_1: .*Not a directory"):
        check_until_it_fails(checkpoints)
    checkpoints.wait()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch, torch.distributed as dist
from torch import nn
from autosplit.targets.templates.torch.pipeline import checkpoints as module

def half(files, folder):
    for number, (name, content) in enumerate(files.items()):
        if folder.name == ".step_2.partial" and number == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        write({name: content}, folder)

write, module.write_files = module.write_files, half
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
stage = nn.Linear(4, 4)
optimizer = torch.optim.AdamW(stage.parameters())
checkpoints = module.Checkpoints({0: stage}, optimizer, 0, 1, background=True)
for step in (1, 2):
    checkpoints.save(Path(sys.argv[1]) / f"step_{step}", {"step": step})
    checkpoints.wait()
"""


@pytest.mark.timeout(100)
def test_a_run_killed_while_it_writes_leaves_the_checkpoint_before(tmp_path):
    found = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=90, check=False)
    assert found.returncode == -signal.SIGKILL
    assert (tmp_path / ".step_2.partial" / "stage_0.safetensors").is_file()
    last = resume_point(tmp_path, "auto", False)
    assert last == tmp_path / "step_1"
    stage = nn.Linear(4, 4)
    checkpoints = Checkpoints({0: stage}, torch.optim.AdamW(stage.parameters()), 0, 1)
    assert checkpoints.load(last) == {"step": 1}
    checkpoints.save(tmp_path / "step_2", {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step_2"]
