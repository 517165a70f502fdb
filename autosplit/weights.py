"""Weights of an export: one safetensors file per stage, written one tensor at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from autosplit.artifacts import write_folder
from autosplit.errors import AutosplitError
from autosplit.modelspec.structure import walk_inputs
from autosplit.stages import Routing
from autosplit.tracers.base import Trace
from autosplit.types import Artifact

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float64: "F64",
    torch.complex64: "C64",
}


def write_export(
    output: str | os.PathLike[str],
    artifacts: Iterable[Artifact],
    trace: Trace,
    routing: Routing,
    *,
    force: bool = False,
) -> None:
    """Write an export: its text files and the weights of every stage.

    Raises
    ------
    AutosplitError
        If the folder may not be replaced, the disk refuses, or the model has no weights.
    """
    write_folder(
        output, artifacts, lambda folder: write_weights(trace, routing, folder), force=force
    )


def write_weights(trace: Trace, routing: Routing, folder: Path) -> None:
    """Write ``weights/`` of an export.

    ``stage_K.safetensors`` holds what the stage's ``state_dict`` holds, each tensor once, under
    the first of its names there; ``buffers_K.safetensors`` the buffers and constants that a
    ``state_dict`` leaves out; ``example.safetensors`` the example inputs.
    """
    place = folder / "weights"
    place.mkdir()
    tensors = _model_tensors(trace)
    for stage, names in enumerate(routing.state):
        hidden = set(routing.buffers[stage])
        visible = (name for name in names if name not in hidden)
        write_safetensors(place / f"stage_{stage}.safetensors", _once(tensors, visible))
        if hidden:
            path = place / f"buffers_{stage}.safetensors"
            write_safetensors(path, _once(tensors, routing.buffers[stage]))
    write_safetensors(place / "example.safetensors", dict(_example_inputs(trace)))


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file; memory is needed for one tensor at a time.

    The format is a header length (8 bytes, little-endian), a JSON header with dtype, shape and
    place of each tensor, and the tensors' bytes (https://github.com/huggingface/safetensors).
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _dtype(name, tensor),
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for tensor in tensors.values():
            stream.write(_bytes(tensor))


def _dtype(name: str, tensor: Tensor) -> str:
    if tensor.is_meta:
        raise AutosplitError(
            f"{name} has no value: the model was built without weights",
            hint="export from a model with weights",
        )
    if tensor.dtype not in _DTYPES:
        raise AutosplitError(f"{name} is {tensor.dtype}, which safetensors cannot hold")
    return _DTYPES[tensor.dtype]


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _model_tensors(trace: Trace) -> dict[str, Tensor]:
    """Return parameters, buffers and captured constants by every name they have."""
    found: dict[str, Tensor] = dict(trace.constants)
    found.update(trace.model.named_parameters(remove_duplicate=False))
    found.update(trace.model.named_buffers(remove_duplicate=False))
    return found


def _once(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tensors of ``names``, a tied one under the first of its names alone."""
    seen: set[int] = set()
    found: dict[str, Tensor] = {}
    for name in names:
        if id(tensors[name]) not in seen:
            seen.add(id(tensors[name]))
            found[name] = tensors[name]
    return found


def _example_inputs(trace: Trace) -> Iterator[tuple[str, Tensor]]:
    """Yield the example inputs by name, for data that a run makes up."""
    names = {spec.path: spec.name for spec in trace.program.inputs}
    for path, tensor in walk_inputs(trace.args, trace.kwargs):
        if path in names and not tensor.is_meta:
            yield names[path], tensor
