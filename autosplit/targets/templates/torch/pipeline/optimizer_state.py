"""State of an optimizer by parameter name: one safetensors and one JSON file per stage.

``optimizer_K.safetensors`` holds tensors under ``STATE/NAME`` (``exp_avg/head.weight``);
``optimizer_K.json`` holds numbers under the same keys, and the settings of each parameter group
with the names of its parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from .errors import PipelineError
from .sharding import divided_like
from .weights import Files, gathered


def optimizer_files(
    optimizer: torch.optim.Optimizer | None,
    stages: Mapping[int, nn.Module],
    *,
    keep: bool = True,
) -> Files:
    """Return the files of the stages of this rank, for ``write_files``.

    Where replicas divide parameters all of them call it, and one is to keep what it returns.
    """
    files: Files = {}
    for index, stage in stages.items():
        names: dict[Tensor, str] = {p: name for name, p in stage.named_parameters()}
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        groups = []
        for group in optimizer.param_groups if optimizer is not None else ():
            settings = {key: value for key, value in group.items() if key != "params"}
            held = [names[p] for p in group["params"] if p in names]
            groups.append({"settings": {k: _number(v) for k, v in settings.items()}, "names": held})
        for parameter, state in optimizer.state.items() if optimizer is not None else ():
            for key, value in state.items() if parameter in names else ():
                place = f"{key}/{names[parameter]}"
                if isinstance(value, Tensor):
                    tensors[place] = value
                else:
                    numbers[place] = value
        files[f"optimizer_{index}.safetensors"] = gathered(tensors, keep=keep)
        text = json.dumps({"numbers": numbers, "groups": groups}, indent=1)
        files[f"optimizer_{index}.json"] = text + "\n"
    return files if keep else {}


def load_optimizer(
    optimizer: torch.optim.Optimizer | None, stages: Mapping[int, nn.Module], folder: Path
) -> None:
    """Fill the optimizer of this rank from the files of its stages.

    Raises
    ------
    PipelineError
        If a file is missing or broken, or the optimizer has other parameter groups.
    """
    if optimizer is None:
        return
    position = {
        p: number
        for number, p in enumerate(p for group in optimizer.param_groups for p in group["params"])
    }
    data = optimizer.state_dict()
    for index, stage in stages.items():
        tensors, numbers, groups = _read(folder, index)
        if len(groups) != len(data["param_groups"]):
            raise PipelineError(
                f"{folder} was written with {len(groups)} parameter groups, and optimizer() in "
                f"data.py makes {len(data['param_groups'])}"
            )
        for group, saved in zip(data["param_groups"], groups, strict=True):
            group.update(saved["settings"])
        parameters = dict(stage.named_parameters())
        for place, value in (*tensors.items(), *numbers.items()):
            key, _, name = place.partition("/")
            if name not in parameters or parameters[name] not in position:
                raise PipelineError(f"{folder}: {place} belongs to no parameter of stage {index}")
            if isinstance(value, Tensor):
                value = divided_like(value, parameters[name])
            data["state"].setdefault(position[parameters[name]], {})[key] = value
    optimizer.load_state_dict(data)


def _read(folder: Path, index: int) -> tuple[dict[str, Tensor], dict[str, Any], list[Any]]:
    path = folder / f"optimizer_{index}"
    try:
        data = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return load_file(path.with_suffix(".safetensors")), data["numbers"], data["groups"]
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise PipelineError(f"cannot read {path}.*: {error}") from None


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) else value
