"""Files of named tensors, read and written one tensor at a time.

A source says what it holds (``infos``) without reading it, so that a whole file can be checked
before a byte is written, and memory is needed for one tensor alone.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from .errors import PipelineError

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F64": torch.float64,
    "C64": torch.complex64,
}
"""Dtypes by their name in a safetensors header."""

INDEX = "model.safetensors.index.json"
PIECE_BYTES = 64 * 2**20
_SHOWN = 3
_DAMAGED = "it is damaged or cut off: copy it again"


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of a tensor that has not been read."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorInfo:
        """Describe a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} of shape {self.shape}"


class Tensors(Protocol):
    """Named tensors that are read when asked for."""

    @property
    def where(self) -> str:
        """What to call the source in messages."""

    @property
    def infos(self) -> Mapping[str, TensorInfo]:
        """Shape and dtype of each tensor."""

    def read(self, name: str) -> Tensor:
        """Return one tensor."""


def listed(names: Iterable[str]) -> str:
    """Return the first few names, and how many there are if there are more."""
    every = sorted(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(_short(name) for name in every[:_SHOWN]) + more


def _short(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:120]}…{name[-60:]} ({len(name)} characters)"


# ---------------------------------------------------------------- sources


class StateDict:
    """Tensors that are in memory, or mapped into it."""

    def __init__(self, where: str, tensors: Mapping[str, Tensor]) -> None:
        self.where = where
        self.tensors = tensors
        self.infos = {name: TensorInfo.of(tensor) for name, tensor in tensors.items()}

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self.tensors[name].detach()


class SafetensorsFiles:
    """Tensors of one or several safetensors files.

    Each file is mapped anew for each tensor: pages that were read leave memory with the tensor.

    Parameters
    ----------
    where
        What to call them in messages.
    files
        The files; a name that several hold is read from the first.
    """

    def __init__(self, where: str, files: Iterable[Path]) -> None:
        self.where = where
        self.infos: dict[str, TensorInfo] = {}
        self.places: dict[str, Path] = {}
        for path in files:
            for name, info in _header(path).items():
                self.infos.setdefault(name, info)
                self.places.setdefault(name, path)

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return read_one(self.places[name], name)

    def copy(self, name: str, target: Tensor) -> None:
        """Copy one tensor, a large one in pieces, so that little more than it is in memory."""
        if self.infos[name].nbytes <= PIECE_BYTES or target.dim() == 0:
            target.copy_(self.read(name))
            return
        rows = max(1, PIECE_BYTES * len(target) // self.infos[name].nbytes)
        for begin in range(0, len(target), rows):
            target[begin : begin + rows].copy_(read_one(self.places[name], name, begin, rows))


def read_one(path: Path, name: str, begin: int = 0, rows: int | None = None) -> Tensor:
    """Return one tensor of a safetensors file, or some of its rows."""
    try:
        with safe_open(path, framework="pt") as file:
            found: Tensor = (
                file.get_tensor(name)
                if rows is None
                else file.get_slice(name)[begin : begin + rows]
            )
            return found
    except (OSError, SafetensorError) as error:
        raise PipelineError(f"cannot read {path}: {error}") from None


def _header(path: Path) -> dict[str, TensorInfo]:
    if not path.is_file():
        raise PipelineError(f"{path} does not exist")
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            found = {n: (tuple(s.get_shape()), s.get_dtype()) for n, s in slices.items()}
    except (OSError, SafetensorError) as error:
        raise PipelineError(f"cannot read {path}: {error}", _DAMAGED) from None
    for name, (_, dtype) in found.items():
        if dtype not in DTYPES:
            raise PipelineError(f"{path}: {_short(name)} has the dtype {dtype}, unknown to torch")
    return {name: TensorInfo(shape, DTYPES[dtype]) for name, (shape, dtype) in found.items()}


def open_tensors(path: Path) -> Tensors:
    """Open weights: a file, or a folder in the layout of Hugging Face.

    Nothing but tensors is unpickled.

    Parameters
    ----------
    path
        A ``.safetensors`` file; a ``state_dict`` that ``torch.save`` wrote; a folder with
        ``model.safetensors``, or with shards and ``model.safetensors.index.json``; or a
        checkpoint of ``torch.distributed.checkpoint``.

    Raises
    ------
    PipelineError
        If it is not there, damaged, incomplete, or holds more than tensors.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.is_file():
        raise PipelineError(f"{path} does not exist")
    if path.suffix == ".json":
        return _open_index(path)
    if path.suffix == ".safetensors":
        return SafetensorsFiles(str(path), [path])
    return _open_pickle(path)


def _open_folder(folder: Path) -> Tensors:
    # Here, for it imports this file.
    from .distributed import DistributedTensors, is_distributed

    if is_distributed(folder):
        return DistributedTensors(folder)
    if (folder / INDEX).is_file():
        return _open_index(folder / INDEX)
    if (folder / "model.safetensors").is_file():
        return SafetensorsFiles(str(folder), [folder / "model.safetensors"])
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    raise PipelineError(
        f"{folder} holds neither model.safetensors nor {INDEX}",
        f"it holds {listed(found)}: give one file" if found else "give the file of the weights",
    )


def _open_index(path: Path) -> Tensors:
    """Open shards, which must hold what the index says and nothing else."""
    mapping = _weight_map(path)
    files = SafetensorsFiles(
        str(path.parent), [path.parent / shard for shard in sorted(set(mapping.values()))]
    )
    for name, shard in mapping.items():
        found = files.places.get(name)
        if found is None or found.name != shard:
            raise PipelineError(f"{path} names {_short(name)} in {shard}, which does not hold it")
    extra = files.infos.keys() - mapping.keys()
    if extra:
        raise PipelineError(f"{path} lacks {listed(extra)}, which its shards hold")
    return files


def _weight_map(path: Path) -> dict[str, str]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PipelineError(f"cannot read {path}: {error}", _DAMAGED) from None
    mapping = data.get("weight_map") if isinstance(data, dict) else None
    if not isinstance(mapping, dict) or not mapping:
        raise PipelineError(f"{path} has no weight_map: it is no index of shards")
    for name, shard in mapping.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise PipelineError(f"{path}: {_short(name)} stands in no file of the folder: {shard}")
    return mapping


def _open_pickle(path: Path) -> Tensors:
    try:
        loaded = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        code = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds code ({code[1]})" if code else "is damaged, or holds more than tensors"
        raise PipelineError(
            f"{path} {what}, and nothing but tensors is unpickled",
            "torch.save(model.state_dict(), PATH) writes a file of tensors alone",
        ) from None
    except Exception as error:  # What torch raises for damaged files is not documented.
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise PipelineError(f"cannot read {path}: {reason}", _DAMAGED) from None
    if not isinstance(loaded, Mapping) or not loaded:
        raise PipelineError(f"{path} holds no tensors by name but a {type(loaded).__name__}")
    others = [str(name) for name, value in loaded.items() if not isinstance(value, Tensor)]
    if others:
        nested = [name for name in others if isinstance(loaded.get(name), Mapping)]
        raise PipelineError(
            f"{path} holds other things than tensors: {listed(others)}",
            f"save what stands under {nested[0]!r} alone" if nested else None,
        )
    return StateDict(str(path), {str(name): tensor for name, tensor in loaded.items()})


# ---------------------------------------------------------------- writing


def write_tensors(
    path: Path, infos: Mapping[str, TensorInfo], read: Callable[[str], Tensor]
) -> None:
    """Write a safetensors file; memory is needed for one tensor at a time.

    The format is a header length (8 bytes, little-endian), a JSON header with dtype, shape and
    place of each tensor, and the tensors' bytes (https://github.com/huggingface/safetensors).

    Parameters
    ----------
    path
        File to write.
    infos
        What it will hold, in order.
    read
        Returns each tensor when its turn comes.

    Raises
    ------
    PipelineError
        If safetensors cannot hold a dtype or name, or a tensor is not what ``infos`` says.
    """
    header = _header_bytes(infos)
    with path.open("wb") as stream:
        stream.write(header)
        for name, info in infos.items():
            tensor = read(name)
            if TensorInfo.of(tensor) != info:
                raise PipelineError(f"{_short(name)} is {TensorInfo.of(tensor)}, not {info}")
            stream.write(_bytes(tensor))


def _header_bytes(infos: Mapping[str, TensorInfo]) -> bytes:
    named = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, info in infos.items():
        if info.dtype not in named or name in header:
            raise PipelineError(f"{_short(name)} is {info}, which safetensors cannot hold")
        header[name] = {
            "dtype": named[info.dtype],
            "shape": list(info.shape),
            "data_offsets": [offset, offset + info.nbytes],
        }
        offset += info.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors are the same, bit by bit (NaN equals itself)."""
    if TensorInfo.of(one) != TensorInfo.of(other):
        return False
    return torch.equal(_flat(one), _flat(other))


def _bytes(tensor: Tensor) -> memoryview:
    return _flat(tensor).numpy().data


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
