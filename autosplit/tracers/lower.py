"""From a recording with live torch objects to a ``Program`` of plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from collections.abc import Mapping as MappingABC
from typing import Any, TypeAlias

import torch
from torch import fx

from autosplit.errors import TraceError
from autosplit.modelspec import LoadedModel
from autosplit.modelspec.structure import describe, walk_inputs
from autosplit.program import (
    Arg,
    Call,
    Dim,
    EllipsisArg,
    InputSpec,
    Mapping,
    Node,
    Program,
    Ref,
    Sequence,
    Size,
    Slice,
    Symbol,
    TensorSpec,
    Token,
    Tree,
)
from autosplit.tracers.callables import public_name
from autosplit.tracers.recording import Recording
from autosplit.tracers.states import module_specs, state_specs

Expression: TypeAlias = Callable[[Any], int | float | bool | str]

_TOKENS: tuple[tuple[type, str], ...] = (
    (torch.dtype, "dtype"),
    (torch.layout, "layout"),
    (torch.memory_format, "memory_format"),
)


class Lowering:
    """Turns the nodes of one recording into plain data.

    Parameters
    ----------
    recording
        What the tracer saw.
    expression
        Writes a size as a number or as text over the symbols.
    """

    def __init__(self, recording: Recording, expression: Expression) -> None:
        self._recording = recording
        self._expression = expression
        self._storages: dict[int, int] = {}

    def nodes(self) -> tuple[Node, ...]:
        """Return every recorded node but the output, inputs first."""
        recorded = [node for node in self._recording.graph.nodes if node.op != "output"]
        recorded.sort(key=lambda node: node.op != "placeholder")
        return tuple(self._located(node) for node in recorded)

    def _located(self, node: fx.Node) -> Node:
        """Return one node; what it is refused for names its line."""
        try:
            return self._node(node)
        except TraceError as error:
            error.cause = error.cause or node.meta.get("location")
            raise

    def _node(self, node: fx.Node) -> Node:
        meta = node.meta
        value = self.value(meta.get("value"), meta.get("requires_grad"))
        if node.op == "placeholder":
            return Node(node.name, "input", node.name, value=value, source_names=_names(meta))
        if node.op == "get_attr":
            return Node(
                node.name, "state", str(node.target), value=value, source_names=_names(meta)
            )
        is_function = node.op == "call_function"
        target = public_name(node.target) if is_function else str(node.target)
        assert target is not None
        return Node(
            node.name,
            "function" if is_function else "module",
            target,
            tuple(self.argument(item) for item in node.args),
            tuple((name, self.argument(item)) for name, item in node.kwargs.items()),
            value,
            calls=meta["calls"],
            ambient=meta["ambient"],
            mutates=tuple(item.name for item in meta["mutates"]),
            writes_state=tuple(meta["writes_state"]),
            returns_argument=meta["returns_argument"],
            random=meta["random"],
            source_names=_names(meta),
            location=meta["location"],
        )

    def value(
        self, value: Any, requires_grad: bool | None = None
    ) -> TensorSpec | tuple[TensorSpec | None, ...] | None:
        """Return the specs of a result; ``requires_grad`` overrules what the tensor says."""
        if isinstance(value, torch.Tensor):
            spec = self._tensor(value)
            if requires_grad is None:
                return spec
            follows = requires_grad and (value.is_floating_point() or value.is_complex())
            return dataclasses.replace(spec, requires_grad=follows)
        if isinstance(value, (tuple, list)):
            return tuple(
                self._tensor(item) if isinstance(item, torch.Tensor) else None for item in value
            )
        return None

    def _tensor(self, tensor: torch.Tensor) -> TensorSpec:
        storage = int(tensor.untyped_storage()._cdata)
        return TensorSpec(
            tuple(self._dim(size) for size in tensor.shape),
            str(tensor.dtype).removeprefix("torch."),
            tuple(self._dim(step) for step in tensor.stride()),
            self._storages.setdefault(storage, len(self._storages)),
            tensor.requires_grad,
        )

    def _dim(self, size: Any) -> Dim:
        known = self._expression(size)
        return known if isinstance(known, str) else int(known)

    def argument(self, value: Any) -> Arg:
        """Return one argument as plain data.

        Raises
        ------
        TraceError
            If it is of a kind that cannot be written into source code.
        """
        if isinstance(value, fx.Node):
            return Ref(value.name)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._size(value)
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        for kind, name in _TOKENS:
            if isinstance(value, kind):
                return Token(name, str(value).removeprefix("torch."))  # type: ignore[arg-type]
        if isinstance(value, torch.device):
            return Token("device", str(value))
        if value is Ellipsis:
            return EllipsisArg()
        if isinstance(value, slice):
            return Slice(*(self.argument(part) for part in (value.start, value.stop, value.step)))
        if isinstance(value, (list, tuple)):
            items = tuple(self.argument(item) for item in value)
            return Sequence("tuple" if isinstance(value, tuple) else "list", items)
        if isinstance(value, MappingABC) and all(isinstance(key, str) for key in value):
            return Mapping(tuple((key, self.argument(item)) for key, item in value.items()))
        raise TraceError(
            f"an operation takes a {type(value).__name__}, which cannot be written as source",
            hint="pass tensors, numbers, strings and None to torch functions",
        )

    def _size(self, value: Any) -> Arg:
        known = self._expression(value)
        if not isinstance(known, str):
            return known
        kinds = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
        return Size(known, kinds[type(value)])  # type: ignore[arg-type]


def lower(
    loaded: LoadedModel,
    recording: Recording,
    expression: Expression,
    symbols: MappingABC[tuple[int, int], str],
    *,
    tracer: str,
    leaves: MappingABC[str, Any],
    warnings: tuple[str, ...] = (),
) -> Program:
    """Return a recording as plain data.

    Parameters
    ----------
    expression
        Writes a size as a number or as text over the symbols.
    symbols
        Names of the free sizes by (tensor input, dimension).
    leaves
        Constructor of each leaf module by first name.
    """
    lowering = Lowering(recording, expression)
    nodes = lowering.nodes()
    names = [node.name for node in nodes if node.op == "input"]
    inputs = list(walk_inputs(loaded.args, loaded.kwargs))
    specs = tuple(
        InputSpec(name, path, batch_dim)
        for name, (path, _), batch_dim in zip(names, inputs, loaded.batch_dims, strict=True)
    )
    used = {str(node.target) for node in recording.graph.nodes if node.op == "get_attr"}
    return Program(
        nodes,
        tuple(
            Call(i, c.kind, c.name, c.fqn, c.parent, c.arg_names, c.loop_variable)
            for i, c in enumerate(recording.calls)
        ),
        module_specs(loaded.model, leaves),
        state_specs(loaded.model, recording.constants, used),
        _symbols(symbols, names, [tensor for _, tensor in inputs]),
        specs,
        _input_tree(loaded, names),
        _output_tree(recording),
        training=loaded.model.training,
        tracer=tracer,
        warnings=warnings,
    )


def _symbols(
    symbols: MappingABC[tuple[int, int], str], names: list[str], tensors: list[torch.Tensor]
) -> tuple[Symbol, ...]:
    sources: dict[str, list[tuple[str, int]]] = {}
    sizes: dict[str, int] = {}
    for (index, dim), name in sorted(symbols.items()):
        sources.setdefault(name, []).append((names[index], dim))
        sizes[name] = tensors[index].shape[dim]
    return tuple(Symbol(name, sizes[name], tuple(found)) for name, found in sources.items())


def _input_tree(loaded: LoadedModel, names: list[str]) -> Tree:
    remaining = iter(names)
    args = describe(loaded.args, lambda _: next(remaining), "input", ("args",))
    kwargs = describe(loaded.kwargs, lambda _: next(remaining), "input", ("kwargs",))
    return Tree("tuple", items=(args, kwargs))


def _output_tree(recording: Recording) -> Tree:
    output = next(node for node in recording.graph.nodes if node.op == "output")
    remaining = iter(output.args[0])
    return describe(recording.output, lambda _: next(remaining).name, "output")


def _names(meta: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(meta.get("names", ()))
