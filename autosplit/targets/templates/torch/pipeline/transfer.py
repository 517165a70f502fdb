"""Weights of the stages to one model and back, and from one pipeline to another.

Everything is checked by names, shapes and dtypes before anything is written, and read and
written one tensor at a time.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from .distributed import is_distributed, unpack, write_distributed
from .errors import PipelineError
from .matching import converted, match
from .optimizer_transfer import WholeOptimizer
from .replacing import replaced
from .routing import Routing
from .tensorfiles import (
    INDEX,
    SafetensorsFiles,
    TensorInfo,
    Tensors,
    open_tensors,
    read_one,
    same_bits,
    write_tensors,
)

Layout: TypeAlias = dict[int, dict[str, TensorInfo]]
"""What each stage holds."""


class MergedStages:
    """The tensors of the whole model, each under all of its names, in the files of the stages.

    Raises
    ------
    PipelineError
        If a file is missing or damaged, or the copies of a tensor that several stages hold
        differ.
    """

    def __init__(self, folder: Path, stages: int, aliases: Mapping[str, str]) -> None:
        _refuse_outer(folder)
        self.where = str(folder)
        self.infos: dict[str, TensorInfo] = {}
        self.places: dict[str, tuple[Path, str]] = {}
        for index in range(stages):
            path = folder / f"stage_{index}.safetensors"
            for name, info in SafetensorsFiles(str(path), [path]).infos.items():
                self._add(aliases.get(name, name), info, (path, name))
        for alias, first in aliases.items():
            if first in self.infos:
                self.infos[alias] = self.infos[first]
                self.places[alias] = self.places[first]

    def _add(self, first: str, info: TensorInfo, place: tuple[Path, str]) -> None:
        held = self.places.setdefault(first, place)
        self.infos.setdefault(first, info)
        if held != place and not same_bits(read_one(*held), read_one(*place)):
            raise PipelineError(
                f"the copies of {first} differ; {place[0]} is from another step than {held[0]}"
            )

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return read_one(*self.places[name])


def merge_state(routing: Routing, folder: Path) -> dict[str, Tensor]:
    """Return the ``state_dict`` of the whole model, tied names sharing one tensor.

    Raises
    ------
    PipelineError
        If a file is missing or damaged, or copies of a tensor differ.
    """
    merged = MergedStages(folder, len(routing.stages), routing.aliases)
    tensors = {place: read_one(*place) for place in dict.fromkeys(merged.places.values())}
    return {name: tensors[place] for name, place in merged.places.items()}


# ---------------------------------------------------------------- merge


def merge(
    routing: Routing,
    folder: Path,
    output: Path,
    *,
    max_shard_bytes: int | None = None,
    config: Path | None = None,
    distributed: bool = False,
) -> None:
    """Write the weights of the whole model.

    Parameters
    ----------
    routing
        The routing table.
    folder
        Weights of the stages.
    output
        A ``.safetensors`` or ``.pt`` file; with ``max_shard_bytes`` a folder.
    max_shard_bytes
        Write a Hugging Face folder: shards of at most this size (a larger tensor gets one of
        its own) and their index.
    config
        A ``config.json`` to put into that folder.
    distributed
        Write a checkpoint of ``torch.distributed.checkpoint`` instead, with optimizer state.

    Raises
    ------
    PipelineError
        If the weights are incomplete or their copies differ, or the disk refuses.
    """
    if distributed:
        _write_distributed(routing, folder, output)
    elif max_shard_bytes is not None:
        merged = MergedStages(folder, len(routing.stages), routing.aliases)
        with replaced(output, folder=True) as partial:
            _write_shards(merged, partial, max_shard_bytes)
            if config is not None:
                shutil.copy(config, partial / "config.json")
    elif output.suffix == ".safetensors":
        merged = MergedStages(folder, len(routing.stages), routing.aliases)
        with replaced(output) as partial:
            write_tensors(partial, merged.infos, merged.read)
    elif output.suffix in (".pt", ".pth"):
        state = merge_state(routing, folder)
        with replaced(output) as partial:
            _save(state, partial)
    else:
        raise PipelineError(f"{output} must end in .safetensors or .pt")


def _write_distributed(routing: Routing, folder: Path, output: Path) -> None:
    count = len(routing.stages)
    merged = MergedStages(folder, count, routing.aliases)
    buffers = SafetensorsFiles(str(folder), _files(folder, "buffers"))
    optimizer = WholeOptimizer(folder, count, routing.aliases)
    training = folder / "training.json"
    state = json.loads(training.read_text(encoding="utf-8")) if training.is_file() else {}
    with replaced(output, folder=True) as partial:
        write_distributed(partial, merged, buffers, optimizer, state)


def _save(state: dict[str, Tensor], path: Path) -> None:
    try:
        torch.save(state, path)
    except RuntimeError as error:  # What torch makes of a full disk.
        raise OSError(errno.EIO, str(error).partition("\n")[0]) from None


def _write_shards(tensors: Tensors, folder: Path, max_bytes: int) -> None:
    shards = _shards(tensors.infos, max_bytes)
    names = ["model.safetensors"]
    if len(shards) > 1:
        count = len(shards)
        names = [f"model-{k:05}-of-{count:05}.safetensors" for k in range(1, count + 1)]
        total = sum(info.nbytes for info in tensors.infos.values())
        mapping = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        data = {"metadata": {"total_size": total}, "weight_map": mapping}
        (folder / INDEX).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    for file, shard in zip(names, shards, strict=True):
        write_tensors(folder / file, shard, tensors.read)


def _shards(infos: Mapping[str, TensorInfo], max_bytes: int) -> list[dict[str, TensorInfo]]:
    shards: list[dict[str, TensorInfo]] = [{}]
    room = max_bytes
    for name, info in infos.items():
        if shards[-1] and info.nbytes > room:
            shards.append({})
            room = max_bytes
        shards[-1][name] = info
        room -= info.nbytes
    return shards


# ---------------------------------------------------------------- split and recut


def split(
    routing: Routing,
    file: Path,
    weights: Path,
    output: Path,
    *,
    convert: bool = False,
    ignore_extra: bool = False,
) -> None:
    """Write the weights of the stages from those of the whole model.

    Parameters
    ----------
    routing
        The routing table.
    file
        What ``open_tensors`` opens.
    weights
        The export's own weights: what the stages hold, and buffers that no ``state_dict`` does.
    output
        Folder to write; it may be ``weights``.
    convert
        Accept another floating-point dtype and convert it.
    ignore_extra
        Leave out tensors that the model does not have.

    Raises
    ------
    PipelineError
        If a tensor is missing, unknown, or of another shape or dtype, or tied tensors differ.
    """
    layout = _layout(weights, "stage", len(routing.stages))
    source = open_tensors(file)
    chosen = match(
        _joined(layout), routing.aliases, source, convert=convert, ignore_extra=ignore_extra
    )
    with replaced(output, folder=True) as partial:
        _write_layout(partial, "stage", layout, chosen, source)
        _copy_others(weights, partial, r"(stage|optimizer)_\d+\..*|training\.json")


def recut(routing: Routing, old: Path, weights: Path, output: Path) -> None:
    """Write weights, buffers and optimizer state of another pipeline of the same model.

    Parameters
    ----------
    routing
        Routing table of the new export.
    old
        Weights to take over: of an export, a checkpoint of its training, or one of
        ``torch.distributed.checkpoint``.
    weights
        Weights of the new export, which say what its stages hold.
    output
        Folder to write; it may be ``weights``.

    Raises
    ------
    PipelineError
        If the two are not of the same model, or files are missing or damaged.
    """
    if is_distributed(old):
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=".unpacked-") as unpacked:
            unpack(old, Path(unpacked))
            recut(routing, Path(unpacked), weights, output)
        return
    if (old / "routing.json").is_file():
        old = old / "weights"
    aliases = routing.aliases
    count = _count(old)
    layout = _layout(weights, "stage", len(routing.stages))
    merged = MergedStages(old, count, aliases)
    chosen = match(_joined(layout), aliases, merged)
    hidden = _layout(weights, "buffers", None)
    # A checkpoint that others wrote knows nothing of them.
    held = _files(old, "buffers") or _files(weights, "buffers")
    buffers = SafetensorsFiles(str(old), held)
    same = match(_joined(hidden), {}, buffers)
    optimizer = WholeOptimizer(old, count, aliases)
    with replaced(output, folder=True) as partial:
        _write_layout(partial, "stage", layout, chosen, merged)
        _write_layout(partial, "buffers", hidden, same, buffers)
        if optimizer.there:
            for index, tensors in layout.items():
                optimizer.write(partial, index, list(tensors))
        _copy_others(weights, partial, r"(stage|buffers|optimizer)_\d+\..*|training\.json")
        if (old / "training.json").is_file():
            shutil.copy(old / "training.json", partial)


def _layout(weights: Path, kind: str, stages: int | None) -> Layout:
    """Return what the files of all ``stages`` hold, or of those that have one."""
    files = _files(weights, kind)
    if stages is not None:
        files = [weights / f"{kind}_{index}.safetensors" for index in range(stages)]
    return {_number(path): SafetensorsFiles(str(path), [path]).infos for path in files}


def _joined(layout: Layout) -> dict[str, TensorInfo]:
    return {name: info for tensors in layout.values() for name, info in tensors.items()}


def _write_layout(
    folder: Path, kind: str, layout: Layout, chosen: Mapping[str, str], source: Tensors
) -> None:
    wanted = _joined(layout)

    def read(name: str) -> Tensor:
        return converted(name, source.read(chosen[name]), wanted[name].dtype)

    for index, infos in layout.items():
        write_tensors(folder / f"{kind}_{index}.safetensors", infos, read)


def _copy_others(source: Path, folder: Path, written: str) -> None:
    """Copy the files of a folder of weights but those that are written anew."""
    for path in sorted(source.iterdir()):
        if path.is_file() and not re.fullmatch(written, path.name):
            shutil.copy(path, folder / path.name)


def _files(folder: Path, kind: str) -> list[Path]:
    """Return ``KIND_K.safetensors`` of a folder in the order of the stages."""
    found = (p for p in folder.glob("*.safetensors") if re.fullmatch(rf"{kind}_\d+", p.stem))
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _count(folder: Path) -> int:
    """Return the number of stages whose weights a folder holds."""
    _refuse_outer(folder)
    numbers = [_number(path) for path in _files(folder, "stage")]
    if not numbers or numbers != list(range(len(numbers))):
        raise PipelineError(
            f"{folder} does not hold the weights of all stages of a pipeline",
            "give an export, or a checkpoint DIR/step_N of train.py --checkpoint-dir DIR",
        )
    return len(numbers)


def _refuse_outer(folder: Path) -> None:
    """Refuse the folder that holds checkpoints in place of one of them."""
    inside = [path for path in folder.glob("step_*") if re.fullmatch(r"step_\d+", path.name)]
    if inside and not any(folder.glob("stage_*.safetensors")):
        last = max(inside, key=_number)
        raise PipelineError(
            f"{folder} holds checkpoints and is not one", f"give one of them, such as {last}"
        )
