"""The last resort: ``torch.export``, whose ATen operations run anything but read poorly."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from autosplit.errors import TraceError
from autosplit.modelspec import LoadedModel
from autosplit.modelspec.structure import map_tensors, walk_inputs
from autosplit.program import Ambient
from autosplit.tracers.base import TRACERS, Trace
from autosplit.tracers.frames import failure
from autosplit.tracers.lower import lower
from autosplit.tracers.randomness import draws_random_numbers
from autosplit.tracers.recording import CallRecord, Recording
from autosplit.tracers.symbolic import expression

_WARNING = (
    "traced by torch.export: operations are ATen's, and the stages keep the mode of the trace"
)


@TRACERS.register("exported")
def trace_exported(loaded: LoadedModel) -> Trace:
    """Export with the sizes in ``loaded.symbols`` free where torch can leave them free."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            program = export(
                loaded.model,
                loaded.args,
                loaded.kwargs,
                dynamic_shapes=_dynamic_shapes(loaded),
                strict=False,
            )
        except Exception as error:
            raise failure(error, "torch.export cannot trace the forward") from error
    translation = _Translation(loaded, program)
    translation.run()
    symbols, public = translation.free_sizes()
    fixed = sorted(set(loaded.symbols.values()) - set(symbols.values()))
    notes = tuple(f"size {name!r} is fixed: torch.export pins it" for name in fixed)
    recording = translation.recording
    plain = lower(
        loaded,
        recording,
        lambda size: expression(size, public),
        symbols,
        tracer="exported",
        leaves={},
        warnings=(_WARNING, *notes),
    )
    return Trace(
        loaded.model, loaded.args, loaded.kwargs, recording.graph, plain, recording.constants
    )


def _dynamic_shapes(loaded: LoadedModel) -> Any:
    """Return a marker for every free size, in the structure of the inputs."""
    parameters = inspect.signature(loaded.model.forward).parameters
    count = iter(range(len(loaded.batch_dims)))

    def mark(_: Any, tensor: torch.Tensor) -> dict[int, Any]:
        index = next(count)
        return {dim: Dim.AUTO for (i, dim) in loaded.symbols if i == index}

    args = [_without_constants(value) for value in map_tensors(loaded.args, mark)]
    marked = map_tensors(loaded.kwargs, mark)
    kwargs = {name: _without_constants(value) for name, value in marked.items()}
    found: dict[str, Any] = {}
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            found[name], args = tuple(args), []
        elif args:
            found[name] = args.pop(0)
        elif name in kwargs:
            found[name] = kwargs.pop(name)
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD and kwargs:
            found[name] = kwargs
    return found


def _without_constants(value: Any) -> Any:
    """Return markers with every constant input replaced by None, as torch.export wants it."""
    if isinstance(value, dict) and all(isinstance(key, int) for key in value):
        return value
    if isinstance(value, dict):
        return {key: _without_constants(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_constants(item) for item in value)
    return None


class _Translation:
    """Rewrites an exported graph as a recording: state by name, sizes inline, calls per module."""

    def __init__(self, loaded: LoadedModel, program: ExportedProgram) -> None:
        self.loaded = loaded
        self.program = program
        self.recording = Recording()
        self._nodes: dict[fx.Node, Any] = {}
        self._state: dict[str, fx.Node] = {}
        self._calls: dict[tuple[str, ...], int] = {}
        self._storages: dict[int, list[fx.Node]] = {}
        self._inputs: dict[int, fx.Node] = {}
        root = CallRecord("module", type(loaded.model).__name__, "", None)
        self._calls[()] = self.recording.add_call(root)

    def run(self) -> None:
        """Translate every node."""
        placeholders = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        self._add_inputs(placeholders)
        for node in self.program.graph.nodes:
            if node.op == "call_function":
                self._add_operation(node)
            elif node.op == "get_attr":
                raise TraceError(f"torch.export made a subgraph ({node.target})")
        self._add_output(next(node for node in self.program.graph.nodes if node.op == "output"))

    def free_sizes(self) -> tuple[dict[tuple[int, int], str], dict[Any, Any]]:
        """Return the sizes that stayed free, and the public symbol of each of torch's."""
        public: dict[Any, Any] = {}
        symbols: dict[tuple[int, int], str] = {}
        for (index, dim), name in sorted(self.loaded.symbols.items()):
            size = self._inputs[index].meta["value"].shape[dim]
            if not isinstance(size, torch.SymInt) or not size.node.expr.is_symbol:
                continue
            symbol = public.setdefault(
                size.node.expr, sympy.Symbol(name, integer=True, positive=True)
            )
            symbols[index, dim] = str(symbol)
        return symbols, public

    def _add_inputs(self, placeholders: list[fx.Node]) -> None:
        own = [tensor for _, tensor in walk_inputs(self.loaded.args, self.loaded.kwargs)]
        order = list(range(len(own)))
        given = iter(pytree.tree_leaves(self.program.example_inputs))
        specs = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        user: dict[int, fx.Node] = {}
        for node in placeholders:
            spec = specs[node.name]
            if spec.kind is InputKind.USER_INPUT:
                tensor = next(given)
                if isinstance(tensor, torch.Tensor):
                    index = next(i for i in order if own[i] is tensor)
                    order.remove(index)
                    user[index] = node
            else:
                assert spec.target is not None
                self._nodes[node] = self._state_node(spec.target, node)
        for index in range(len(own)):
            node = user[index]
            made = self.recording.graph.placeholder(node.name)
            self._finish(made, node.meta["val"], requires_grad=own[index].requires_grad)
            self._nodes[node] = self._inputs[index] = made

    def _state_node(self, name: str, node: fx.Node) -> fx.Node:
        known: dict[str, torch.Tensor] = dict(
            self.loaded.model.named_parameters(remove_duplicate=False)
        )
        known.update(self.loaded.model.named_buffers(remove_duplicate=False))
        value = known.get(name)
        if value is None:
            value = self.program.constants[name]
            name = self.recording.capture(value)
        made = self.recording.graph.get_attr(name)
        self._finish(made, node.meta["val"], requires_grad=value.requires_grad)
        return made

    def _add_operation(self, node: fx.Node) -> None:
        value = node.meta.get("val")
        tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
        written = self._written(node)
        if not tensors and not written:
            return
        args, kwargs = self._arguments(node.args), self._arguments(node.kwargs)
        made = self.recording.graph.call_function(_target(node), args, kwargs)
        grad = any(_needs_grad(source) for source in made.all_input_nodes)
        made.meta.update(
            calls=self._path(node),
            ambient=Ambient(),
            mutates=[],
            writes_state=[],
            returns_argument=False,
            random=draws_random_numbers(_Named(node), args, kwargs),
            names=[],
            location=None,
        )
        self._finish(made, value, requires_grad=grad)
        for source in written:
            for other in self._storages.get(_storage(source), []):
                if other.op == "get_attr":
                    made.meta["writes_state"].append(str(other.target))
                elif other is not made:
                    made.meta["mutates"].append(other)
        self._nodes[node] = made

    def _finish(self, made: fx.Node, value: Any, *, requires_grad: bool) -> None:
        made.meta["value"] = value
        made.meta["requires_grad"] = requires_grad
        if isinstance(value, torch.Tensor):
            self._storages.setdefault(_storage(made), []).append(made)

    def _written(self, node: fx.Node) -> list[fx.Node]:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return []
        named = {argument.name: position for position, argument in enumerate(schema.arguments)}
        written = [a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write]
        if "batch_norm" in schema.name and node.args[5:6] == (True,):
            written = ["running_mean", "running_var"]
        found = [
            node.kwargs.get(name, node.args[named[name]] if named[name] < len(node.args) else None)
            for name in written
        ]
        return [self._nodes[item] for item in found if isinstance(item, fx.Node)]

    def _arguments(self, value: Any) -> Any:
        def change(source: fx.Node) -> Any:
            return self._nodes[source] if source in self._nodes else source.meta["val"]

        return fx.node.map_arg(value, change)

    def _path(self, node: fx.Node) -> tuple[int, ...]:
        path: tuple[str, ...] = ()
        found = [self._calls[()]]
        for key, (fqn, kind) in list(node.meta.get("nn_module_stack", {}).items()):
            if not fqn:
                continue
            path = (*path, key)
            if path not in self._calls:
                name = kind if isinstance(kind, str) else kind.__name__
                record = CallRecord("module", name.rpartition(".")[2], _clean(fqn), found[-1])
                self._calls[path] = self.recording.add_call(record)
            found.append(self._calls[path])
        return tuple(found)

    def _add_output(self, node: fx.Node) -> None:
        signature = self.program.graph_signature.output_specs
        results: list[Any] = list(node.args[0])  # type: ignore[arg-type]
        for spec, result in zip(signature, results, strict=True):
            if spec.kind is OutputKind.BUFFER_MUTATION:
                raise TraceError(f"torch.export rewrote the update of buffer {spec.target}")
            if spec.kind is not OutputKind.USER_OUTPUT:
                raise TraceError(f"torch.export returns a {spec.kind.name}: {result}")
        spec_of_output = self.program.call_spec.out_spec
        assert spec_of_output is not None
        values = [item.meta["val"] if isinstance(item, fx.Node) else item for item in results]
        self.recording.output = pytree.tree_unflatten(values, spec_of_output)
        self.recording.graph.output(
            [self._nodes[item] for item in results if isinstance(item, fx.Node)]
        )


class _Named:
    """The plain name of an ATen operation, as randomness is told by names."""

    def __init__(self, node: fx.Node) -> None:
        self.__name__ = str(getattr(node.target, "_opname", ""))


def _target(node: fx.Node) -> Any:
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        raise TraceError(f"torch.export made a subgraph ({node.target})")
    return node.target


def _needs_grad(node: fx.Node) -> bool:
    return bool(node.meta.get("requires_grad"))


def _storage(node: fx.Node) -> int:
    return int(node.meta["value"].untyped_storage()._cdata)


def _clean(fqn: str) -> str:
    """Return a module path without the marker of a repeated call (``block@2``)."""
    return ".".join(part.split("@")[0] for part in fqn.split("."))
