"""The stages of an export and the routing table between them, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autosplit.program import Dim, InputSpec, Tree


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of an export.

    Parameters
    ----------
    index, count
        Position, and number of stages.
    nodes
        Operations in running order; pure ones whose value nobody reads are left out.
    take
        Values that ``forward`` is called with, in this order.
    give
        Values that ``forward`` returns, in this order (one value: the tensor itself; several:
        a tuple).
    clone
        Taken values that the stage writes to: it must be given a copy of its own.
    sizes
        ``(symbol, value, dimension)``: where each size the stage uses is read.
    state
        Names (any alias) under which the stage holds parameters, buffers and constants, in the
        order of the model's registration. Names that are one tensor in the model and both
        stand here are one tensor in the stage.
    """

    index: int
    count: int
    nodes: tuple[str, ...]
    take: tuple[str, ...]
    give: tuple[str, ...]
    clone: tuple[str, ...]
    sizes: tuple[tuple[str, str, int], ...]
    state: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StageRoute:
    """Take, give and clone of one stage, as in ``StageSpec``."""

    take: tuple[str, ...]
    give: tuple[str, ...]
    clone: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RoutedValue:
    """Shape and dtype of a value that a stage takes or gives, while tracing.

    ``batch_dim`` is the dimension that micro-batches divide (None: there is none).
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    batch_dim: int | None


@dataclass(frozen=True, slots=True)
class SharedState:
    """A trainable tensor that several stages hold: gradients are summed over the holders.

    ``holders`` are ``(stage, name in that stage)``, first use first.
    """

    name: str
    holders: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class Routing:
    """The routing table of an export.

    Parameters
    ----------
    stages
        One route per stage.
    cuts
        For each boundary the values alive across it, in the order in which they are sent.
        Model inputs are looked up locally and cross only when a stage has changed them.
    inputs
        Model inputs and where they stand in ``(args, kwargs)``.
    input_tree, output_tree
        Structure of ``(args, kwargs)`` and of the model's output.
    values
        Every value that a stage takes or gives.
    shared
        Trainable tensors held by several stages.
    replicated
        Buffers and frozen parameters held by several stages: ``name -> holders`` as above.
    aliases
        ``(other name, first name)`` for every further name in the original ``state_dict()``.
    unused
        State that no operation uses and that stage 0 carries, so that a merge is complete.
    buffers
        Names of non-persistent buffers and captured constants per stage.
    symbols
        ``(name, value while tracing)``.
    mode
        The only mode in which the stages do what the model does; None: they follow it in both.
    state
        State of each stage, as in ``StageSpec``.
    """

    stages: tuple[StageRoute, ...]
    cuts: tuple[tuple[str, ...], ...]
    inputs: tuple[InputSpec, ...]
    input_tree: Tree
    output_tree: Tree
    values: tuple[RoutedValue, ...]
    shared: tuple[SharedState, ...] = ()
    replicated: tuple[SharedState, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    buffers: tuple[tuple[str, ...], ...] = ()
    symbols: tuple[tuple[str, int], ...] = ()
    mode: Literal["train", "eval"] | None = None
    state: tuple[tuple[str, ...], ...] = ()
