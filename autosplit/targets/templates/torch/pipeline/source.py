"""Data and loss from the file or module of the model, or made up from its example inputs."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from .errors import PipelineError
from .routing import Routing
from .tree import rebuild


def load_source(source: str) -> ModuleType:
    """Import the file or module in which the model was defined.

    The path of a file is absolute, or below this folder.

    Raises
    ------
    PipelineError
        If it is not there.
    """
    if not source.endswith(".py"):
        try:
            return importlib.import_module(source)
        except ModuleNotFoundError as error:
            raise PipelineError(
                f"cannot import {source}: {error}",
                hint="install it, set PYTHONPATH, or edit data.py if only the data comes from it",
            ) from None
    path = Path(__file__).parents[1] / source
    if not path.is_file():
        raise PipelineError(f"{source} does not exist any more; edit data.py")
    copied = not Path(source).is_absolute()
    stem = source.removesuffix(".py") if copied else path.stem
    name = "spec_" + re.sub(r"[^0-9A-Za-z_]", "_", stem)
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    # Neighbours of a copy are copies too; a folder elsewhere must not hide this folder's files.
    sys.path.insert(0 if copied else len(sys.path), str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def example_batches(
    routing: Routing, folder: str | Path, batch_size: int, seed: int = 0
) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield batches whose rows are drawn from the example inputs; there are no targets."""
    examples = load_file(Path(folder) / "example.safetensors")
    dims = {name: routing.values[name].batch_dim for name in examples}
    count = min((examples[n].shape[dim] for n, dim in dims.items() if dim is not None), default=1)
    generator = torch.Generator().manual_seed(seed)
    while True:
        rows = torch.randint(count, (batch_size,), generator=generator)
        drawn = {
            name: tensor if (dim := dims[name]) is None else tensor.index_select(dim, rows)
            for name, tensor in examples.items()
        }
        yield rebuild(routing.input_tree, drawn), ()


def read_inputs(routing: Routing, path: str | Path) -> Any:
    """Return ``(args, kwargs)`` with the tensors of a safetensors file.

    Raises
    ------
    PipelineError
        If the file cannot be read or its names are not those of the inputs.
    """
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise PipelineError(f"cannot read {path}: {error}") from None
    if set(tensors) != set(routing.inputs):
        raise PipelineError(
            f"{path} holds {', '.join(sorted(tensors))}; the inputs are {', '.join(routing.inputs)}"
        )
    return rebuild(routing.input_tree, tensors)


def own_loss(output: Any) -> Tensor:
    """Return the loss a model computes itself, else the mean squares of what it returns.

    The output named "loss", a lone scalar output, or a sum that any change of any output moves.
    """
    floats = dict(_floats(output))
    if "loss" in floats:
        return floats["loss"]
    if not floats:
        raise PipelineError("the model returns no floating-point tensor: write a loss in data.py")
    if len(floats) == 1 and next(iter(floats.values())).dim() == 0:
        return next(iter(floats.values()))
    return torch.stack([value.float().square().mean() for value in floats.values()]).sum()


def _floats(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield path, value
        return
    if isinstance(value, (tuple, list)):
        items: Any = enumerate(value)
    elif isinstance(value, dict):
        items = value.items()
    else:
        items = getattr(value, "__dict__", {}).items()
    for key, item in items:
        yield from _floats(item, f"{path}.{key}" if path else str(key))
