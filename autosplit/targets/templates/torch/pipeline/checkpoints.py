"""Checkpoints of a training run: whole or not there, the last few kept, resumed from exactly."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch import nn

from .errors import PipelineError
from .optimizer_state import load_optimizer, save_optimizer
from .replicas import Replicas
from .weights import load_stage, save_stage

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


@dataclass
class Checkpoints:
    """Writes and reads the checkpoints of one rank's part.

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
    """

    stages: Mapping[int, nn.Module]
    optimizer: torch.optim.Optimizer | None
    rank: int
    keep: int | None = None
    replicas: Replicas = field(default_factory=Replicas)

    def save(self, folder: Path, state: Mapping[str, Any]) -> None:
        """Write a checkpoint, which appears when it is whole; all ranks call it.

        Parameters
        ----------
        folder
            ``DIR/step_N``; one of that name from an earlier run is replaced.
        state
            What else a run needs to go on, the same on every rank.
        """
        partial = folder.with_name(f".{folder.name}.partial")
        try:
            self._write(folder, partial, state)
        except (OSError, SafetensorError) as error:
            raise PipelineError(f"cannot write {folder}: {error}") from None

    def _write(self, folder: Path, partial: Path, state: Mapping[str, Any]) -> None:
        if self.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
        dist.barrier()
        write = self.replicas.index == 0
        for index, stage in self.stages.items():
            save_stage(stage, index, partial, write=write)
        save_optimizer(self.optimizer, self.stages, partial, write=write)
        dist.barrier()
        if self.rank == 0:
            text = json.dumps(dict(state), indent=1) + "\n"
            (partial / _STATE).write_text(text, encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            partial.rename(folder)
            for old in found_checkpoints(folder.parent)[: -self.keep] if self.keep else ():
                shutil.rmtree(old)
        dist.barrier()

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
