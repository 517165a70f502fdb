"""A trace at other sizes of its input."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from autosplit.modelspec.structure import map_tensors, walk_inputs
from autosplit.tracers.base import Trace


def resized(trace: Trace, sizes: Mapping[str, int]) -> Trace:
    """Return a trace whose example inputs have given sizes: rows are repeated, or cut off."""
    symbols = tuple(
        dataclasses.replace(symbol, example=sizes.get(symbol.name, symbol.example))
        for symbol in trace.program.symbols
    )
    program = dataclasses.replace(trace.program, symbols=symbols)
    return dataclasses.replace(_with_inputs(trace, sizes), program=program)


def _with_inputs(trace: Trace, sizes: Mapping[str, int]) -> Trace:
    paths = [path for path, _ in walk_inputs(trace.args, trace.kwargs)]
    path_of = dict(zip((spec.name for spec in trace.program.inputs), paths, strict=True))
    wanted = {
        (path_of[name], dim): sizes[symbol.name]
        for symbol in trace.program.symbols
        if symbol.name in sizes
        for name, dim in symbol.sources
    }

    def change(path: tuple[str | int, ...], tensor: Tensor) -> Tensor:
        for dim in range(tensor.dim()):
            size = wanted.get((path, dim), tensor.shape[dim])
            if size != tensor.shape[dim]:
                rows = torch.arange(size, device=tensor.device) % tensor.shape[dim]
                tensor = tensor.index_select(dim, rows)
        return tensor

    args: Any = map_tensors(trace.args, change, ("args",))
    kwargs: Any = map_tensors(trace.kwargs, change, ("kwargs",))
    return dataclasses.replace(trace, args=args, kwargs=kwargs)
