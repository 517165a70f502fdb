"""Read an export back: its plan, its routing table, its stages with their weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from autosplit.errors import DataError
from autosplit.serialize import from_data, load, parse_json, read_text
from autosplit.stages.types import Routing
from autosplit.targets.original import FOLDER as ORIGINAL_FOLDER
from autosplit.types import Plan

_OWN_MODULES = ("stages", "pipeline", "data", "train", "infer", "checkpoint")
"""Top-level modules of an export; other exports and the user may have some of the same name."""


@dataclass
class Export:
    """An export in memory.

    Parameters
    ----------
    stages
        The folder's own modules, with weights and buffers loaded.
    saved
        What the weight file of each stage holds.
    merged
        The checkpoint that the folder's own ``checkpoint.py`` merges from these; in words why
        it cannot.
    """

    folder: Path
    plan: Plan
    routing: Routing
    stages: list[nn.Module]
    saved: list[dict[str, Tensor]]
    merged: dict[str, Tensor] | str


def read_export(folder: Path) -> Export:
    """Read an export folder and build its stages.

    Raises
    ------
    DataError
        If something is missing from the folder, or does not fit the rest.
    """
    plan, routing = read_plan(folder), read_routing(folder)
    stages, saved = [], []
    with modules_of(folder):
        for index in range(len(routing.stages)):
            saved.append(_tensors(folder / "weights" / f"stage_{index}.safetensors"))
            stages.append(_build(folder, index))
        merged = _merge(folder)
    return Export(folder, plan, routing, stages, saved, merged)


def read_plan(folder: Path) -> Plan:
    """Return the plan that the folder was exported from."""
    if not (folder / "plan.json").is_file():
        raise DataError(
            f"{folder} is not an export",
            cause="it has no plan.json",
            hint="give the folder that autosplit export wrote",
        )
    return load(Plan, folder / "plan.json")


def read_routing(folder: Path) -> Routing:
    """Return the routing table of the folder."""
    path = folder / "routing.json"
    data = parse_json(read_text(path), str(path))
    if not isinstance(data, dict) or data.pop("schema", None) != "autosplit.routing":
        raise DataError(f"{path} is not a routing table")
    for key in ("version", "run"):
        data.pop(key, None)
    try:
        routing: Routing = from_data(Routing, data)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", cause=error.cause) from None
    return routing


@contextmanager
def modules_of(folder: Path) -> Iterator[None]:
    """Import from ``folder`` inside the block, and leave no module of it behind."""
    own = {*_OWN_MODULES, *_copied(folder)}
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if _top(name) in own}
    paths = list(sys.path)
    sys.path.insert(0, str(folder.resolve()))
    written, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        importlib.invalidate_caches()
        yield
    finally:
        sys.dont_write_bytecode = written
        sys.path[:] = paths
        for name in [name for name in sys.modules if _top(name) in own]:
            del sys.modules[name]
        sys.modules.update(kept)


def _copied(folder: Path) -> Iterator[str]:
    """Yield the modules that the folder's copy of the model's code consists of."""
    for path in (folder / ORIGINAL_FOLDER).glob("*"):
        yield path.stem
        yield f"spec_{ORIGINAL_FOLDER}_{path.stem}"


def _top(name: str) -> str:
    return name.partition(".")[0]


def _build(folder: Path, index: int) -> nn.Module:
    """Build one stage and let the folder's own runtime load its weights."""
    try:
        stage = getattr(importlib.import_module(f"stages.stage_{index}"), f"Stage{index}")()
        importlib.import_module("pipeline").load_stage(stage, index, folder / "weights")
    except Exception as error:
        raise DataError(
            f"stage {index} of {folder} cannot be loaded",
            cause=f"{type(error).__name__}: {' '.join(str(error).split())}",
            hint="export again with --force",
        ) from error
    if not isinstance(stage, nn.Module):
        raise DataError(f"Stage{index} of {folder} is not a torch module")
    return stage


def _merge(folder: Path) -> dict[str, Tensor] | str:
    try:
        routing = importlib.import_module("pipeline").read_routing(folder / "routing.json")
        merge = importlib.import_module("checkpoint").merge_state
        return dict(merge(routing, folder / "weights"))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path} cannot be read", cause=str(error)) from None
