"""Weights of the stages to one file of the whole model, and back.

``merge`` writes every name of the original model's ``state_dict``, so that
``model.load_state_dict`` takes it strictly; ``split`` takes such a file apart again. A ``.pt``
file holds tied tensors once; ``.safetensors`` knows no ties and holds them under each name.
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

import torch
from pipeline import PipelineError, Routing, read_routing, stage_tensors
from pipeline.options import run_main
from safetensors.torch import load_file, save_file
from stages import STAGES
from torch import Tensor

HERE = Path(__file__).parent


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    merge = commands.add_parser("merge", help="write one file from the weights of the stages")
    merge.add_argument("weights", type=Path, nargs="?", default=HERE / "weights")
    split = commands.add_parser("split", help="write the weights of the stages from one file")
    split.add_argument("file", type=Path)
    for command in (merge, split):
        command.add_argument("-o", "--output", type=Path, required=True)
        command.add_argument("--force", action="store_true", help="replace the output")
    return parser.parse_args()


def main() -> None:
    """Merge or split."""
    options = parse()
    routing = read_routing(HERE / "routing.json")
    if options.output.exists() and not options.force:
        raise PipelineError(f"{options.output} exists: pass --force to replace it")
    if options.command == "merge":
        write_state(merge_state(routing, options.weights), options.output)
    else:
        write_stages(routing, read_state(options.file), options.output)


def merge_state(routing: Routing, folder: Path) -> dict[str, Tensor]:
    """Return the ``state_dict`` of the whole model, tied names sharing one tensor.

    Raises
    ------
    PipelineError
        If the copies of a tensor that several stages hold differ.
    """
    merged: dict[str, Tensor] = {}
    for index in range(len(routing.stages)):
        path = folder / f"stage_{index}.safetensors"
        if not path.is_file():
            raise PipelineError(f"{path} does not exist")
        for name, tensor in load_file(path).items():
            first = routing.aliases.get(name, name)
            if first in merged and not torch.equal(merged[first], tensor):
                raise PipelineError(f"the copies of {first} differ; {path} is from another step")
            merged.setdefault(first, tensor)
    for alias, first in routing.aliases.items():
        if first in merged:
            merged[alias] = merged[first]
    return merged


def write_state(state: dict[str, Tensor], path: Path) -> None:
    """Write a whole ``state_dict`` beside its place, then rename."""
    partial = path.with_name(f".{path.name}.partial")
    if path.suffix == ".safetensors":
        seen: set[int] = set()
        apart = {}
        for name, tensor in state.items():
            apart[name] = tensor.clone() if id(tensor) in seen else tensor
            seen.add(id(tensor))
        save_file(apart, partial, metadata={"format": "pt"})
    elif path.suffix in (".pt", ".pth"):
        torch.save(state, partial)
    else:
        raise PipelineError(f"{path} must end in .safetensors or .pt")
    os.replace(partial, path)


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a whole ``state_dict``; nothing but tensors is unpickled."""
    if not path.is_file():
        raise PipelineError(f"{path} does not exist")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:
        raise PipelineError(f"cannot read {path}: {' '.join(str(error).split())}") from None


def write_stages(routing: Routing, state: dict[str, Tensor], folder: Path) -> None:
    """Write the weights of every stage; the folder appears when it is whole.

    Raises
    ------
    PipelineError
        If a tensor is missing, unknown or of another shape, or tied tensors differ.
    """
    wanted = [stage_tensors(make()) for make in STAGES]
    _check_state(routing, state, wanted)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for index, tensors in enumerate(wanted):
        found = {name: state[name].contiguous() for name in tensors}
        save_file(found, partial / f"stage_{index}.safetensors")
    for path in sorted((HERE / "weights").glob("buffers_*.safetensors")):
        shutil.copy(path, partial / path.name)
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)


def _check_state(
    routing: Routing, state: dict[str, Tensor], wanted: list[dict[str, Tensor]]
) -> None:
    expected = {name: tensor for tensors in wanted for name, tensor in tensors.items()}
    known = expected.keys() | routing.aliases.keys() | set(routing.aliases.values())
    for alias, first in routing.aliases.items():
        for name, other in ((alias, first), (first, alias)):
            if name in expected and name not in state and other in state:
                state[name] = state[other]
        if alias in state and first in state and not torch.equal(state[alias], state[first]):
            raise PipelineError(f"{alias} and {first} are one tensor in the model and differ here")
    for names, word in ((expected.keys() - state.keys(), "lacks"), (state.keys() - known, "has")):
        if names:
            raise PipelineError(f"the file {word} {', '.join(sorted(names)[:3])}")
    for name, tensor in expected.items():
        if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
            raise PipelineError(
                f"{name} is {state[name].dtype} of shape {tuple(state[name].shape)}, not "
                f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            )


if __name__ == "__main__":
    run_main(main)
