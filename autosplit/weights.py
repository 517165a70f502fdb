"""Weights of an export: one safetensors file per stage, written one tensor at a time.

They come from the live model, or from files that hold them. How files are read and written is
the exported runtime's own code.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

from torch import Tensor

from autosplit.artifacts import write_folder
from autosplit.errors import AutosplitError
from autosplit.modelspec.structure import walk_inputs
from autosplit.stages import Routing
from autosplit.targets.templates.torch.pipeline import transfer
from autosplit.targets.templates.torch.pipeline.errors import PipelineError
from autosplit.targets.templates.torch.pipeline.matching import converted, match
from autosplit.targets.templates.torch.pipeline.routing import read_routing
from autosplit.targets.templates.torch.pipeline.tensorfiles import (
    TensorInfo,
    Tensors,
    open_tensors,
    write_tensors,
)
from autosplit.tracers.base import Trace
from autosplit.types import Artifact

PathLike: TypeAlias = str | os.PathLike[str]


@contextlib.contextmanager
def _speaking() -> Iterator[None]:
    """Turn what the runtime's code refuses into an error of this package."""
    try:
        yield
    except PipelineError as error:
        raise AutosplitError(error.message, hint=error.hint) from None


def open_weights(path: PathLike) -> Tensors:
    """Open weights without reading them.

    Parameters
    ----------
    path
        A ``.safetensors`` file, a ``state_dict`` of ``torch.save``, a Hugging Face folder, or a
        checkpoint of ``torch.distributed.checkpoint``.

    Raises
    ------
    AutosplitError
        If they are not there, damaged, or more than tensors.
    """
    with _speaking():
        return open_tensors(Path(path))


# ---------------------------------------------------------------- export


def write_export(
    output: PathLike,
    artifacts: Iterable[Artifact],
    trace: Trace,
    routing: Routing,
    *,
    source: Tensors | None = None,
    convert: bool = False,
    ignore_extra: bool = False,
    force: bool = False,
) -> None:
    """Write an export: its text files and the weights of every stage.

    Parameters
    ----------
    output, force
        The folder, and whether an earlier export there may be replaced.
    artifacts
        Text files.
    trace, routing
        The model, and what each stage holds of it.
    source
        Where the weights come from instead of the model, whose parameters may then be on meta.
    convert
        Convert floating-point tensors of ``source`` to the model's dtype where they have
        another, instead of refusing them.
    ignore_extra
        Leave out tensors of ``source`` that the model does not have, instead of refusing them.

    Raises
    ------
    AutosplitError
        If the folder may not be replaced, the disk refuses, the model has no weights, or
        ``source`` does not hold exactly the model's.
    """
    values = (
        ModelTensors(trace)
        if source is None
        else StoredTensors(trace, source, convert, ignore_extra=ignore_extra)
    )
    write_folder(
        output, artifacts, lambda folder: write_weights(values, routing, folder), force=force
    )


class ModelTensors:
    """Parameters, buffers and captured constants of a model, by every name they have."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.tensors: dict[str, Tensor] = dict(trace.constants)
        self.tensors.update(trace.model.named_parameters(remove_duplicate=False))
        self.tensors.update(trace.model.named_buffers(remove_duplicate=False))

    def once(self, names: Iterable[str]) -> dict[str, TensorInfo]:
        """Describe the tensors of ``names``, a tied one under the first of its names alone."""
        first: dict[int, str] = {}
        for name in names:
            first.setdefault(id(self.tensors[name]), name)
        return {name: TensorInfo.of(self.tensors[name]) for name in first.values()}

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        if self.tensors[name].is_meta:
            raise AutosplitError(
                f"{name} has no value: the model was built without weights",
                hint="export from a model with weights",
            )
        return self.tensors[name]


class StoredTensors(ModelTensors):
    """The same with the values of a file for all that the model's ``state_dict`` holds.

    Raises
    ------
    AutosplitError
        If the file does not hold exactly that, or with ``ignore_extra`` not all of it.
    """

    def __init__(
        self, trace: Trace, source: Tensors, convert: bool, *, ignore_extra: bool = False
    ) -> None:
        super().__init__(trace)
        self.source = source
        first: dict[int, str] = {}
        saved = _saved(trace)
        names = {name: first.setdefault(id(self.tensors[name]), name) for name in saved}
        aliases = {name: other for name, other in names.items() if name != other}
        with _speaking():
            expected = self.once(saved)
            chosen = match(expected, aliases, source, convert=convert, ignore_extra=ignore_extra)
        self.chosen = {name: chosen[other] for name, other in names.items()}

    def read(self, name: str) -> Tensor:
        """Return one tensor."""
        if name not in self.chosen:
            return super().read(name)
        return converted(name, self.source.read(self.chosen[name]), self.tensors[name].dtype)


def _saved(trace: Trace) -> list[str]:
    """Return every name of the parameters and buffers that a ``state_dict`` holds."""
    return [
        name
        for state in trace.program.states
        if state.persistent and state.kind != "constant"
        for name in (state.fqn, *state.aliases)
    ]


def write_weights(values: ModelTensors, routing: Routing, folder: Path) -> None:
    """Write ``weights/`` of an export.

    ``stage_K.safetensors`` holds what the stage's ``state_dict`` holds, each tensor once, under
    the first of its names there; ``buffers_K.safetensors`` the buffers and constants that a
    ``state_dict`` leaves out; ``example.safetensors`` the example inputs.
    """
    place = folder / "weights"
    place.mkdir()
    with _speaking():
        for stage, names in enumerate(routing.state):
            hidden = set(routing.buffers[stage])
            visible = values.once(name for name in names if name not in hidden)
            write_tensors(place / f"stage_{stage}.safetensors", visible, values.read)
            if hidden:
                infos = values.once(routing.buffers[stage])
                write_tensors(place / f"buffers_{stage}.safetensors", infos, values.read)
        examples = dict(_example_inputs(values.trace))
        infos = {name: TensorInfo.of(tensor) for name, tensor in examples.items()}
        write_tensors(place / "example.safetensors", infos, examples.__getitem__)


def _example_inputs(trace: Trace) -> Iterator[tuple[str, Tensor]]:
    """Yield the example inputs by name, for data that a run makes up."""
    names = {spec.path: spec.name for spec in trace.program.inputs}
    for path, tensor in walk_inputs(trace.args, trace.kwargs):
        if path in names and not tensor.is_meta:
            yield names[path], tensor


# ---------------------------------------------------------------- checkpoints of an export


def merge(
    export: PathLike,
    output: PathLike,
    *,
    weights: PathLike | None = None,
    max_shard_bytes: int | None = None,
    config: Path | None = None,
    distributed: bool = False,
    force: bool = False,
) -> None:
    """Write one model from the weights of the stages; see ``workflow.merge_checkpoint``."""
    folder = Path(export)
    with _speaking():
        routing = read_routing(folder / "routing.json")
        _refuse_existing(Path(output), force)
        transfer.merge(
            routing,
            folder / "weights" if weights is None else Path(weights),
            Path(output),
            max_shard_bytes=max_shard_bytes,
            config=config,
            distributed=distributed,
        )


def split(
    export: PathLike,
    file: PathLike,
    output: PathLike,
    *,
    convert: bool = False,
    ignore_extra: bool = False,
    force: bool = False,
) -> None:
    """Write the weights of the stages from a model's; see ``workflow.split_checkpoint``."""
    folder = Path(export)
    with _speaking():
        routing = read_routing(folder / "routing.json")
        _refuse_existing(Path(output), force)
        transfer.split(
            routing,
            Path(file),
            folder / "weights",
            Path(output),
            convert=convert,
            ignore_extra=ignore_extra,
        )


def recut(old: PathLike, export: PathLike, output: PathLike, *, force: bool = False) -> None:
    """Take over what another pipeline has trained; see ``workflow.recut_checkpoint``."""
    folder = Path(export)
    with _speaking():
        routing = read_routing(folder / "routing.json")
        _refuse_existing(Path(output), force)
        transfer.recut(routing, Path(old), folder / "weights", Path(output))


def _refuse_existing(output: Path, force: bool) -> None:
    if output.exists() and not force:
        raise AutosplitError(f"{output} exists", hint="pass --force to replace it")
