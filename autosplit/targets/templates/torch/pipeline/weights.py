"""Weights of one stage: read, checked name by name, and collected for writing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .errors import PipelineError
from .replacing import sync
from .sharding import is_divided, local, part_of, whole
from .tensorfiles import SafetensorsFiles, TensorInfo, listed

Files: TypeAlias = dict[str, dict[str, Tensor] | str]
"""Content of files by name: tensors of a safetensors file, or text."""


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


def stage_files(stage: nn.Module, index: int, *, keep: bool = True) -> Files:
    """Return what ``load_stage`` reads, for ``write_files``; without ``keep`` nothing.

    Where replicas divide parameters all of them call it, and one is to keep what it returns.
    """
    tensors = gathered(stage_tensors(stage), keep=keep)
    buffers = dict(_hidden_buffers(stage))
    files: Files = {f"stage_{index}.safetensors": tensors}
    if buffers:
        files[f"buffers_{index}.safetensors"] = gathered(buffers)
    return files if keep else {}


def write_files(files: Files, folder: Path) -> None:
    """Write files into a folder, and make the disk hold them."""
    for name, content in files.items():
        path = folder / name
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            save_file(content, path)
        sync(path)


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
            if is_divided(tensor):
                local(tensor).copy_(part_of(file.read(name), tensor))
            else:
                file.copy(name, tensor)


def _hidden_buffers(stage: nn.Module) -> Iterator[tuple[str, Tensor]]:
    visible = stage.state_dict(keep_vars=True)
    for name, buffer in stage.named_buffers():
        if name not in visible:
            yield name, buffer


def _check_names(path: Path, expected: set[str], found: set[str]) -> None:
    for names, word in ((expected - found, "lacks"), (found - expected, "has the unknown")):
        if names:
            raise PipelineError(f"{path} {word} {listed(names)}")
