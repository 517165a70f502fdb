"""The routing table: which tensor goes where. Read from ``routing.json``, never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .errors import PipelineError
from .tree import Tree

SCHEMA = "autosplit.routing"
MAJOR_VERSION = 1


@dataclass(frozen=True)
class Route:
    """What ``forward`` of one stage is called with and returns, in order.

    ``clone`` are taken values that the stage writes to: it gets a copy of its own.
    """

    take: tuple[str, ...]
    give: tuple[str, ...]
    clone: tuple[str, ...]

    def call(self, stage: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Call a stage with what it takes from ``values``; return what it gives by name."""
        taken = (values[name].clone() if name in self.clone else values[name] for name in self.take)
        given = stage(*taken)
        if isinstance(given, Tensor):
            given = (given,)
        return dict(zip(self.give, given, strict=True))


@dataclass(frozen=True)
class Value:
    """Shape and dtype of a tensor; a size given as text may differ from run to run.

    ``batch_dim`` is the dimension that micro-batches divide, None where there is none.
    """

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    batch_dim: int | None


@dataclass(frozen=True)
class Shared:
    """A tensor that several stages hold: ``(stage, name in that stage)`` of each copy."""

    name: str
    holders: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Run:
    """What the plan says about a run.

    Parameters
    ----------
    ranks
        Rank of each stage.
    schedule, microbatches
        Defaults of the command line.
    microbatch_size
        Rows of one micro-batch in the plan.
    replicas
        Copies of the pipeline, each with rows of its own.
    sharding
        Whether replicas hold parameters whole ("replicate") or divided ("fsdp").
    recompute
        Per stage, modules whose activations are computed again in backward.
    """

    ranks: tuple[int, ...]
    schedule: str
    microbatches: int
    microbatch_size: int
    replicas: int = 1
    sharding: str = "replicate"
    recompute: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True)
class Routing:
    """The routing table.

    Parameters
    ----------
    stages
        Route of each stage.
    cuts
        Values sent over each boundary, in order.
    input_tree, output_tree
        Structure of ``(args, kwargs)`` and of the output.
    values
        Every value that a stage takes or gives, and every input.
    shared
        Trainable tensors that several stages hold; their gradients are summed.
    replicated
        Buffers and frozen parameters that several stages hold.
    aliases
        ``other name -> first name`` of tied tensors in the model's ``state_dict``.
    buffers
        Per stage, names of tensors that ``state_dict`` leaves out.
    symbols
        Sizes that may differ from run to run, with their value while tracing.
    mode
        "train" or "eval" where the stages do what the model does in that mode alone.
    """

    stages: tuple[Route, ...]
    cuts: tuple[tuple[str, ...], ...]
    input_tree: Tree
    output_tree: Tree
    values: Mapping[str, Value]
    shared: tuple[Shared, ...]
    replicated: tuple[Shared, ...]
    aliases: Mapping[str, str]
    buffers: tuple[tuple[str, ...], ...]
    symbols: Mapping[str, int]
    mode: str | None
    run: Run

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the model's tensor inputs, in order."""
        return tuple(dict.fromkeys(self.input_tree.names()))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the tensors the model returns, each once."""
        return tuple(dict.fromkeys(self.output_tree.names()))

    def sent(self, stage: int) -> tuple[str, ...]:
        """Return what a stage sends: over its cut, or as output of the model."""
        return self.outputs if stage == len(self.stages) - 1 else self.cuts[stage]

    def received(self, stage: int) -> tuple[str, ...]:
        """Return what a stage receives."""
        return self.cuts[stage - 1] if stage else ()

    def local_inputs(self, stage: int) -> frozenset[str]:
        """Return the model inputs that a stage looks up where it runs."""
        wanted = set(self.stages[stage].take)
        if stage == len(self.stages) - 1:
            wanted.update(self.outputs)
        return frozenset(wanted & set(self.inputs) - set(self.received(stage)))


def read_routing(path: str | Path) -> Routing:
    """Read ``routing.json``.

    Raises
    ------
    PipelineError
        If the file is not a routing table of this version.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PipelineError(f"cannot read {path}: {error}") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise PipelineError(f"{path} is not a routing table")
    if data["version"][0] != MAJOR_VERSION:
        raise PipelineError(f"{path} has version {data['version']}, not {MAJOR_VERSION}.x")
    try:
        return _routing(data)
    except (KeyError, TypeError) as error:
        raise PipelineError(f"{path} is not a whole routing table: {error!r}") from None


def _routing(data: Mapping[str, Any]) -> Routing:
    run = data["run"]
    return Routing(
        stages=tuple(
            Route(tuple(route["take"]), tuple(route["give"]), tuple(route["clone"]))
            for route in data["stages"]
        ),
        cuts=tuple(tuple(cut) for cut in data["cuts"]),
        input_tree=Tree.from_data(data["input_tree"]),
        output_tree=Tree.from_data(data["output_tree"]),
        values={value["name"]: _value(value) for value in data["values"]},
        shared=tuple(_shared(item) for item in data["shared"]),
        replicated=tuple(_shared(item) for item in data["replicated"]),
        aliases=dict(data["aliases"]),
        buffers=tuple(tuple(names) for names in data["buffers"]),
        symbols=dict(data["symbols"]),
        mode=data["mode"],
        run=Run(
            ranks=tuple(run["ranks"]),
            schedule=run["schedule"],
            microbatches=run["microbatches"],
            microbatch_size=run["microbatch_size"],
            replicas=run.get("replicas", 1),
            sharding=run.get("sharding", "replicate"),
            recompute=tuple(map(tuple, run.get("recompute", ()))),
        ),
    )


def _value(data: Mapping[str, Any]) -> Value:
    return Value(tuple(data["shape"]), getattr(torch, data["dtype"]), data["batch_dim"])


def _shared(data: Mapping[str, Any]) -> Shared:
    return Shared(data["name"], tuple((stage, name) for stage, name in data["holders"]))
