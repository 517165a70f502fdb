"""Weights of one stage: read, checked name by name, and collected for writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .errors import PipelineError
from .sharding import local, part_of, whole
from .tensorfiles import SafetensorsFiles, TensorInfo, listed


def stage_tensors(stage: nn.Module) -> dict[str, Tensor]:
    """Return what ``state_dict`` holds, each tensor under its first name alone."""
    found: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in stage.state_dict(keep_vars=True).items():
        if found.setdefault(id(tensor), name) == name:
            tensors[name] = tensor.detach()
    return tensors


def load_stage(stage: nn.Module, index: int, folder: str | Path) -> None:
    """Fill a stage from ``stage_K.safetensors`` and ``buffers_K.safetensors`` in ``folder``.

    Only this stage's tensors are read, one at a time.

    Raises
    ------
    PipelineError
        If a tensor is missing, unknown, or of another shape or dtype.
    """
    place = Path(folder)
    fill(stage_tensors(stage), place / f"stage_{index}.safetensors")
    buffers = dict(_hidden_buffers(stage))
    if buffers:
        fill(buffers, place / f"buffers_{index}.safetensors")


def save_stage(stage: nn.Module, index: int, folder: str | Path, *, write: bool = True) -> None:
    """Write what ``load_stage`` reads.

    Where replicas divide parameters all of them call it, and one is to write.
    """
    place = Path(folder)
    tensors = gathered(stage_tensors(stage), keep=write)
    buffers = dict(_hidden_buffers(stage))
    if write:
        save_file(tensors, place / f"stage_{index}.safetensors")
    if write and buffers:
        save_file(gathered(buffers), place / f"buffers_{index}.safetensors")


def gathered(tensors: Mapping[str, Tensor], *, keep: bool = True) -> dict[str, Tensor]:
    """Return tensors whole and dense; without ``keep``, help other replicas to theirs."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor.detach())
        if keep:
            found[name] = full.contiguous()
    return found


def fill(tensors: dict[str, Tensor], path: Path) -> None:
    """Copy the tensors of a file into those of the same names; both sides must match."""
    file = SafetensorsFiles(str(path), [path])
    _check_names(path, set(tensors), set(file.infos))
    for name, tensor in tensors.items():
        found, needed = file.infos[name], TensorInfo.of(tensor)
        if found != needed:
            raise PipelineError(f"{path}: {name} is {found}; the stage needs {needed}")
        with torch.no_grad():
            local(tensor).copy_(part_of(file.read(name), tensor))


def _hidden_buffers(stage: nn.Module) -> Iterator[tuple[str, Tensor]]:
    visible = stage.state_dict(keep_vars=True)
    for name, buffer in stage.named_buffers():
        if name not in visible:
            yield name, buffer


def _check_names(path: Path, expected: set[str], found: set[str]) -> None:
    for names, word in ((expected - found, "lacks"), (found - expected, "has the unknown")):
        if names:
            raise PipelineError(f"{path} {word} {listed(names)}")
