"""Checkpoints of a training run: whole or not there, the last few kept, resumed from exactly."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn

from .errors import PipelineError
from .optimizer_state import load_optimizer, optimizer_files
from .replacing import move, sync
from .replicas import Replicas
from .weights import Files, load_stage, stage_files, write_files

_STATE = "training.json"


def found_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints ``step_N`` of a folder, oldest first."""
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"step_(\d+)", path.name)) and (path / _STATE).is_file()
    }
    return [found[step] for step in sorted(found)]


def resume_point(folder: Path | None, asked: str | None, restarted: bool) -> Path | None:
    """Return the checkpoint to go on from; None to begin anew.

    Parameters
    ----------
    folder
        Where this run writes checkpoints.
    asked
        A folder, or "auto" for the last in ``folder`` if there is one.
    restarted
        Whether torchrun has started the processes again.

    Raises
    ------
    PipelineError
        If there is none, or if a new run would mix its checkpoints with those of another.
    """
    found = found_checkpoints(folder) if folder else []
    if restarted and found:
        return found[-1]
    if asked == "auto":
        if folder is None:
            raise PipelineError("--resume auto needs --checkpoint-dir")
        return found[-1] if found else None
    if asked is None:
        if found:
            raise PipelineError(
                f"{folder} holds {found[-1].name} of an earlier run: pass --resume auto to go on "
                "from it, or another --checkpoint-dir"
            )
        return None
    path = Path(asked)
    if not (path / _STATE).is_file():
        inside = found_checkpoints(path)
        if not inside:
            raise PipelineError(f"{path} is not a checkpoint of train.py")
        path = inside[-1]
    return path


class Checkpoints:
    """Writes and reads the checkpoints of one rank's part; all ranks make it, and call the same.

    Parameters
    ----------
    stages, optimizer
        What is saved.
    rank
        Number of this process.
    keep
        How many checkpoints stay; None for all.
    replicas
        The first one writes.
    background
        Write a copy in the memory of the host while training goes on.
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        optimizer: torch.optim.Optimizer | None,
        rank: int,
        keep: int | None = None,
        replicas: Replicas = Replicas(),  # noqa: B008 (never changed)
        *,
        background: bool = False,
    ) -> None:
        self.stages = stages
        self.optimizer = optimizer
        self.rank = rank
        self.keep = keep
        self.replicas = replicas
        self.background = background
        # Of its own: the training loop must not meet the writer in the middle of a sum.
        self._group = dist.new_group(backend="gloo", timeout=replicas.timeout)
        self._writer: _Writer | None = None

    def save(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, which appears when it is whole; all ranks call it.

        In the background no more than one is written at a time: a second one waits for it.

        Parameters
        ----------
        folder
            ``DIR/step_N``; one of that name from an earlier run is replaced.
        state
            What else a run needs to go on, the same on every rank.

        Raises
        ------
        PipelineError
            If the disk refuses, here or in the checkpoint before. Earlier ones are untouched.
        """
        self.wait()
        files = self._files()
        text = json.dumps(dict(state), indent=1) + "\n"
        if self.background:
            self._writer = _Writer(partial(self._write, folder, _copied(files), text))
            self._writer.start()
        else:
            self._write(folder, files, text)

    def check(self) -> None:
        """Raise what went wrong in the background."""
        if self._writer is not None and not self._writer.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait for what is written in the background; raise what went wrong."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.join()
            if writer.error is not None:
                raise writer.error

    def _files(self) -> Files:
        keep = self.replicas.index == 0
        files: Files = {}
        for index, stage in self.stages.items():
            files |= stage_files(stage, index, keep=keep)
        return files | optimizer_files(self.optimizer, self.stages, keep=keep)

    def _write(self, folder: Path, files: Files, state: str) -> None:
        unfinished = folder.with_name(f".{folder.name}.partial")
        parts = (
            partial(self._begin, unfinished),
            partial(write_files, files, unfinished),
            partial(self._end, unfinished, folder, state),
        )
        try:
            for part in parts:
                if not self._together(part, folder):
                    break
        finally:
            if self.rank == 0:
                shutil.rmtree(unfinished, ignore_errors=True)

    def _together(self, part: Callable[[], None], folder: Path) -> bool:
        """Do a part; return whether all ranks could. The one that could not raises."""
        failure = None
        try:
            part()
        except (OSError, SafetensorError) as error:
            failure = error
        could = torch.tensor([int(failure is None)])
        dist.all_reduce(could, op=dist.ReduceOp.MIN, group=self._group)
        if failure is not None:
            raise PipelineError(f"cannot write {folder}: {failure}") from None
        return bool(could.item())

    def _begin(self, unfinished: Path) -> None:
        if self.rank == 0:
            for left in unfinished.parent.glob(".step_*.partial"):
                shutil.rmtree(left, ignore_errors=True)
            unfinished.mkdir(parents=True)

    def _end(self, unfinished: Path, folder: Path, state: str) -> None:
        if self.rank == 0:
            write_files({_STATE: state}, unfinished)
            sync(unfinished)
            move(unfinished, folder)
            for old in found_checkpoints(folder.parent)[: -self.keep] if self.keep else ():
                shutil.rmtree(old)

    def load(self, folder: Path) -> dict[str, Any]:
        """Fill stages and optimizer; return the rest of the state.

        Raises
        ------
        PipelineError
            If something is missing, or belongs to other stages or another optimizer.
        """
        try:
            state: dict[str, Any] = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise PipelineError(f"cannot read {folder / _STATE}: {error}") from None
        for index, stage in self.stages.items():
            load_stage(stage, index, folder)
        load_optimizer(self.optimizer, self.stages, folder)
        return state


class _Writer(threading.Thread):
    """Writes in the background; ends with the process, for it may wait for one that has died."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(name="checkpoint", daemon=True)
        self.error: Exception | None = None
        self._write = write

    def run(self) -> None:
        """Write."""
        try:
            self._write()
        except Exception as error:  # Raised again by the thread that trains.
            self.error = error


def _copied(files: Files) -> Files:
    """Return files with tensors that training does not change."""
    return {
        name: content
        if isinstance(content, str)
        else {key: tensor.to("cpu", copy=True) for key, tensor in content.items()}
        for name, content in files.items()
    }
