"""State of an optimizer from the stages of one pipeline to those of another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from .errors import PipelineError
from .tensorfiles import SafetensorsFiles, TensorInfo, read_one, write_tensors

T = TypeVar("T")
Group = dict[str, Any]


class WholeOptimizer:
    """What ``optimizer_files`` gave for all stages, by the first names of the parameters.

    Parameters
    ----------
    folder
        A checkpoint; ``there`` tells whether it holds any such state.
    stages
        Number of its stages.
    aliases
        ``other name -> first name`` of tied tensors.

    Raises
    ------
    PipelineError
        If files are missing or damaged, or the stages have other parameter groups.
    """

    def __init__(self, folder: Path, stages: int, aliases: Mapping[str, str]) -> None:
        self.aliases = aliases
        self.tensors: dict[str, dict[str, tuple[TensorInfo, Path, str]]] = {}
        self.numbers: dict[str, dict[str, Any]] = {}
        self.groups: list[Group] = []
        self.there = any(folder.glob("optimizer_*"))
        for index in range(stages if self.there else 0):
            path = folder / f"optimizer_{index}.safetensors"
            for key, info in SafetensorsFiles(str(path), [path]).infos.items():
                self._keep(self.tensors, key, (info, path, key))
            numbers, groups = _read(path.with_suffix(".json"))
            for key, number in numbers.items():
                self._keep(self.numbers, key, number)
            self._add_groups(groups, path)

    def _keep(self, found: dict[str, dict[str, T]], key: str, value: T) -> None:
        state, _, name = key.partition("/")
        found.setdefault(self._first(name), {}).setdefault(state, value)

    def _add_groups(self, groups: list[Group], path: Path) -> None:
        """Add the parameters of a stage; one without parameters has no groups."""
        if groups and not self.groups:
            self.groups = [{"settings": group["settings"], "names": set()} for group in groups]
        if groups and [g["settings"] for g in groups] != [g["settings"] for g in self.groups]:
            raise PipelineError(f"{path} has other parameter groups than the stages before it")
        for group, found in zip(self.groups, groups, strict=False):
            group["names"].update(map(self._first, found["names"]))

    def _first(self, name: str) -> str:
        return self.aliases.get(name, name)

    def read(self, name: str, state: str) -> Tensor:
        """Return a tensor of the state of a parameter."""
        _, path, key = self.tensors[name][state]
        return read_one(path, key)

    def write(self, folder: Path, index: int, names: Sequence[str]) -> None:
        """Write the state of the parameters among the ``names`` that a stage holds."""
        places = self._of(self.tensors, names)
        infos = {key: info for key, (info, _, _) in places.items()}
        path = folder / f"optimizer_{index}.safetensors"
        write_tensors(path, infos, lambda key: read_one(*places[key][1:]))
        groups = [
            {
                "settings": group["settings"],
                "names": [name for name in names if self._first(name) in group["names"]],
            }
            for group in self.groups
        ]
        data = {"numbers": self._of(self.numbers, names), "groups": groups}
        text = json.dumps(data, indent=1) + "\n"
        path.with_suffix(".json").write_text(text, encoding="utf-8")

    def _of(self, found: Mapping[str, Mapping[str, T]], names: Sequence[str]) -> dict[str, T]:
        return {
            f"{state}/{name}": value
            for name in names
            for state, value in found.get(self._first(name), {}).items()
        }


def _read(path: Path) -> tuple[dict[str, Any], list[Group]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return data["numbers"], data["groups"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PipelineError(f"cannot read {path}: {error!r}") from None
