"""Checkpoints of ``torch.distributed.checkpoint``, under the names of the whole model.

They hold what ``{"model": model.state_dict(), "optim": ...}`` gives there, with the optimizer as
``get_optimizer_state_dict`` flattens it: ``state.NAME.exp_avg``, ``param_groups.NAME.lr``. Beside
that stand ``buffers``, ``group`` (of each parameter) and ``training``, so that nothing is lost.
Torch unpickles what it reads; here nothing is but tensors, numbers and the table of contents.
"""

from __future__ import annotations

import json
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from .errors import PipelineError
from .optimizer_transfer import WholeOptimizer
from .tensorfiles import TensorInfo, Tensors, write_tensors

_TABLE = ".metadata"
_HIDDEN = "buffers"
_CLASSES: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("pathlib", "PosixPath"): Path,
    ("pathlib", "WindowsPath"): Path,
    ("torch", "Size"): torch.Size,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): filesystem._StorageInfo,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    **{
        ("torch.distributed.checkpoint.metadata", name): getattr(metadata, name)
        for name in (
            *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties"),
            *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
            "_MEM_FORMAT_ENCODING",
        )
    },
}
"""All that a table of contents is made of."""


def is_distributed(folder: Path) -> bool:
    """Return whether a folder is such a checkpoint."""
    return (folder / _TABLE).is_file()


# ---------------------------------------------------------------- writing


def write_distributed(
    folder: Path,
    tensors: Tensors,
    buffers: Tensors,
    optimizer: WholeOptimizer,
    training: Mapping[str, Any],
) -> None:
    """Write a checkpoint into a folder; tensors are mapped, and written one after the other."""
    state: dict[str, dict[str, Any]] = {
        "model": {name: tensors.read(name) for name in tensors.infos},
        _HIDDEN: {name: buffers.read(name) for name in buffers.infos},
        "optim": dict(_flat(optimizer)),
        "group": {
            name: index for index, group in enumerate(optimizer.groups) for name in group["names"]
        },
        "training": dict(training),
    }
    with _alone():
        save(
            {kind: values for kind, values in state.items() if values},
            storage_writer=filesystem.FileSystemWriter(folder),
            no_dist=True,
        )


def _flat(optimizer: WholeOptimizer) -> Iterator[tuple[str, Any]]:
    for name, numbers in optimizer.numbers.items():
        yield from ((f"state.{name}.{key}", value) for key, value in numbers.items())
    for name, tensors in optimizer.tensors.items():
        yield from ((f"state.{name}.{key}", optimizer.read(name, key)) for key in tensors)
    for group in optimizer.groups:
        for name in sorted(group["names"]):
            for key, value in group["settings"].items():
                yield f"param_groups.{name}.{key}", value


# ---------------------------------------------------------------- reading


class DistributedTensors:
    """The weights in a checkpoint: what stands under "model", or all tensors if nothing does.

    Raises
    ------
    PipelineError
        If its table of contents is damaged, or names anything but tensors and numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.where = str(folder)
        self.reader = _Reader(folder)
        paths = self.reader.paths
        inside = any(path[0] == "model" and len(path) > 1 for path in paths.values())
        self._keys = {
            ".".join(path[1:] if inside else path): key
            for key, path in paths.items()
            if (path[0] == "model") == inside
        }
        self.infos = {name: self.reader.info(key) for name, key in self._keys.items()}

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        return self.reader.tensor(self._keys[name])


class _Reader:
    """Reads single entries; the table of contents is read once."""

    def __init__(self, folder: Path) -> None:
        self.where = folder
        self.table = _table(folder)
        given = self.table.planner_data or {}
        self.paths: dict[str, tuple[str, ...]] = {
            key: tuple(map(str, given.get(key, (key,)))) for key in self.table.state_dict_metadata
        }

    def info(self, key: str) -> TensorInfo:
        """Describe a tensor."""
        found = self.table.state_dict_metadata[key]
        if not isinstance(found, metadata.TensorStorageMetadata):
            raise PipelineError(f"{self.where}: {key} is no tensor")
        return TensorInfo(tuple(found.size), found.properties.dtype)

    def under(self, kind: str) -> dict[str, str]:
        """Return ``name -> key`` of what stands under a name."""
        found = ((path, key) for key, path in self.paths.items())
        return {".".join(path[1:]): key for path, key in found if path[0] == kind and path[1:]}

    def tensor(self, key: str) -> Tensor:
        """Return one tensor."""
        info = self.info(key)
        state = {key: torch.empty(info.shape, dtype=info.dtype)}
        self._load(state)
        return state[key]

    def value(self, key: str) -> Any:
        """Return one tensor or number."""
        if isinstance(self.table.state_dict_metadata[key], metadata.TensorStorageMetadata):
            return self.tensor(key)
        state: dict[str, Any] = {key: None}
        self._load(state)
        return state[key]

    def _load(self, state: dict[str, Any]) -> None:
        try:
            with _alone():
                load(
                    state,
                    storage_reader=_Files(self.where, self.table),
                    planner=_Numbers(),
                    no_dist=True,
                )
        except CheckpointException as error:
            (failure, _), *_ = error.failures.values()
            reason = str(failure).partition("\n")[0] or type(failure).__name__
            raise PipelineError(f"cannot read {self.where}: {reason}") from None


@contextmanager
def _alone() -> Iterator[None]:
    """Let torch not warn that there is one process."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield


class _Files(filesystem.FileSystemReader):
    """Files of a checkpoint with a table of contents that has been read."""

    def __init__(self, folder: Path, table: metadata.Metadata) -> None:
        super().__init__(folder)
        self._table = table

    def read_metadata(self, *args: Any, **kwargs: Any) -> metadata.Metadata:
        """Return the table of contents."""
        return self._table


class _Numbers(DefaultLoadPlanner):
    """Unpickles numbers, texts and tuples of them, where torch would unpickle anything."""

    def load_bytes(self, read_item: Any, value: Any) -> None:
        """Put a number into the state that is loaded."""
        found = torch.load(value, weights_only=True)
        self.original_state_dict[read_item.dest_index.fqn] = found


class _Table(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """Return a class of a table of contents, or a dtype."""
        if (module, name) in _CLASSES:
            return _CLASSES[module, name]
        found = getattr(torch, name, None) if module == "torch" else None
        if not isinstance(found, torch.dtype):
            raise PipelineError(
                f"the table of contents holds code ({module}.{name}), which is not run"
            )
        return found


def _table(folder: Path) -> metadata.Metadata:
    path = folder / _TABLE
    try:
        with path.open("rb") as stream:
            found = _Table(stream).load()
    except PipelineError as error:
        raise PipelineError(f"{path}: {error.message}") from None
    except Exception as error:  # A damaged pickle raises anything.
        raise PipelineError(f"cannot read {path}: {error}", "copy it again") from None
    if not isinstance(found, metadata.Metadata):
        raise PipelineError(f"{path} is no table of contents of torch.distributed.checkpoint")
    return found


# ---------------------------------------------------------------- as a pipeline of one stage


def unpack(folder: Path, output: Path) -> None:
    """Write a checkpoint as that of a pipeline whose only stage is the model.

    Raises
    ------
    PipelineError
        If it is damaged, or what an optimizer has belongs to no parameter.
    """
    tensors = DistributedTensors(folder)
    write_tensors(output / "stage_0.safetensors", tensors.infos, tensors.read)
    reader = tensors.reader
    if hidden := reader.under(_HIDDEN):
        infos = {name: reader.info(key) for name, key in hidden.items()}
        path = output / "buffers_0.safetensors"
        write_tensors(path, infos, lambda name: reader.tensor(hidden[name]))
    if optim := reader.under("optim"):
        _unpack_optimizer(reader, optim, set(tensors.infos), output)
    if training := reader.under("training"):
        values = {name: reader.value(key) for name, key in training.items()}
        (output / "training.json").write_text(json.dumps(values, indent=1) + "\n")


def _unpack_optimizer(
    reader: _Reader, optim: Mapping[str, str], names: set[str], output: Path
) -> None:
    infos: dict[str, TensorInfo] = {}
    keys: dict[str, str] = {}
    numbers: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {}
    for entry, key in optim.items():
        kind, _, rest = entry.partition(".")
        name, _, state = rest.rpartition(".")
        if name not in names or kind not in ("state", "param_groups"):
            raise PipelineError(f"{reader.where}: {entry} belongs to no parameter of the model")
        if kind == "param_groups":
            settings.setdefault(name, {})[state] = _plain(reader.value(key))
        elif isinstance(reader.table.state_dict_metadata[key], metadata.TensorStorageMetadata):
            infos[f"{state}/{name}"], keys[f"{state}/{name}"] = reader.info(key), key
        else:
            numbers[f"{state}/{name}"] = reader.value(key)
    path = output / "optimizer_0.safetensors"
    write_tensors(path, infos, lambda place: reader.tensor(keys[place]))
    numbered = {name: reader.value(key) for name, key in reader.under("group").items()}
    data = {"numbers": numbers, "groups": list(_groups(settings, numbered))}
    path.with_suffix(".json").write_text(json.dumps(data, indent=1) + "\n")


def _groups(
    settings: Mapping[str, dict[str, Any]], numbered: Mapping[str, int]
) -> Iterable[dict[str, Any]]:
    """Return parameter groups; where no numbers are known, one for all of the same settings."""
    found: dict[Any, dict[str, Any]] = {}
    for name, own in settings.items():
        key = numbered.get(name, json.dumps(own, sort_keys=True))
        found.setdefault(key, {"settings": own, "names": []})["names"].append(name)
    order = sorted(found) if numbered and len(numbered) == len(settings) else list(found)
    return (found[key] for key in order)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
