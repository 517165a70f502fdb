"""Run a part of a trace: a set of nodes as one Python function."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch

from autosplit import program as plain
from autosplit.modelspec.structure import walk_inputs
from autosplit.program import PLAIN, Ambient, Arg, Node, Program
from autosplit.sizes import symbols_in
from autosplit.tracers.base import Trace


class Replay:
    """A set of nodes of a trace as a callable: ``replay(*tensors) -> tuple``.

    Parameters
    ----------
    inputs
        Names of the values it takes, in order; a model input may be taken only for its size.
    outputs
        Names of the values it returns: those used outside or by the model's output, and inputs
        that it writes to and that are used afterwards.
    clone
        For each input, whether the nodes write to its memory: pass a copy to keep the original.
    function
        The same as a plain function, for who compiles it.
    """

    def __init__(
        self,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        clone: tuple[bool, ...],
        function: Callable[..., tuple[Any, ...]],
        source: str,
    ) -> None:
        self.inputs = inputs
        self.outputs = outputs
        self.clone = clone
        self.source = source
        self.function = function

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Run the nodes."""
        return self.function(*tensors)


def compile_nodes(
    trace: Trace,
    names: Iterable[str],
    *,
    state: Mapping[str, torch.Tensor] | None = None,
    modules: Mapping[str, Callable[..., Any]] | None = None,
    device: torch.device | str | None = None,
    training: bool | None = None,
    readers: Collection[str] | None = None,
) -> Replay:
    """Return the nodes ``names`` as a function, run in the order in which they were recorded.

    Parameters
    ----------
    names
        Operations; state they read is taken from the model, everything else from the inputs.
    state, modules
        Tensors and leaf modules to use in place of the model's, by first name.
    device
        Device that stands for every device written in the trace; None keeps them.
    training
        Mode that switches follow; None for the one that was traced.
    readers
        Operations that run at all, here or elsewhere: what others alone read is not returned.
        None for every operation of the program.
    """
    chosen = set(names)
    nodes = [node for node in trace.program.nodes if node.name in chosen]
    writer = _Writer(
        trace, nodes, dict(state or {}), dict(modules or {}), device, training, readers
    )
    return writer.compile()


class _Writer:
    def __init__(
        self,
        trace: Trace,
        nodes: list[Node],
        state: dict[str, torch.Tensor],
        modules: dict[str, Callable[..., Any]],
        device: torch.device | str | None,
        training: bool | None,
        readers: Collection[str] | None,
    ) -> None:
        self.trace = trace
        self.program: Program = trace.program
        self.nodes = [node for node in nodes if node.op in ("function", "module")]
        self.state = state
        self.modules = modules
        self.device = device
        self.training = trace.program.training if training is None else training
        self.readers = trace.program.node if readers is None else readers
        self.live = {node.name: node for node in trace.graph.nodes}
        self.variables: dict[str, str] = {}
        self.globals: dict[str, Any] = {
            "torch": torch,
            "math": math,
            "inf": math.inf,
            "nan": math.nan,
        }
        self.symbols: dict[str, None] = {}

    def compile(self) -> Replay:
        inside = {node.name for node in self.nodes}
        inputs = self._inputs(inside)
        for name in (*inputs, *(node.name for node in self.nodes)):
            self.variables[name] = f"v{len(self.variables)}"
        written = self._written(inputs)
        outputs = self._outputs(inside, written)
        body = self._body(inside.difference(outputs))
        inputs, sizes = self._sizes(inputs)
        parameters = ", ".join(self.variables[name] for name in inputs)
        results = "".join(f"{self.variables[name]}, " for name in outputs)
        lines = [f"def run({parameters}):", *sizes, *body, f"    return ({results})"]
        source = "\n".join(lines) + "\n"
        exec(compile(source, "<replay>", "exec"), self.globals)
        clone = tuple(name in written for name in inputs)
        return Replay(tuple(inputs), outputs, clone, self.globals["run"], source)

    # ------------------------------------------------------------ interface

    def _inputs(self, inside: set[str]) -> list[str]:
        found: dict[str, None] = {}
        for node in self.nodes:
            for name in node.inputs():
                if name not in inside and self.program.node[name].op != "state":
                    found[name] = None
        return list(found)

    def _written(self, inputs: list[str]) -> set[str]:
        mutated = {name for node in self.nodes for name in node.mutates}
        return mutated.intersection(inputs)

    def _outputs(self, inside: set[str], written: set[str]) -> tuple[str, ...]:
        returned = set(self.program.outputs)
        last = self.program.position[self.nodes[-1].name] if self.nodes else 0
        found = []
        for name in (*sorted(written), *(node.name for node in self.nodes)):
            users = [
                user
                for user in self.program.users[name]
                if user not in inside and user in self.readers
            ]
            if name in written:
                users = [user for user in users if self.program.position[user] > last]
            if users or name in returned:
                found.append(name)
        return tuple(found)

    def _sizes(self, inputs: list[str]) -> tuple[list[str], list[str]]:
        """Return the inputs, more of them if a size needs one, and lines that read sizes."""
        lines = []
        for symbol in self.symbols:
            for name in inputs:
                spec = self.program.node[name].value
                if isinstance(spec, plain.TensorSpec) and symbol in spec.shape:
                    dim = spec.shape.index(symbol)
                    break
            else:
                name, dim = self.program.symbol[symbol].sources[0]
                self.variables.setdefault(name, f"v{len(self.variables)}")
                inputs = [*inputs, name]
            lines.append(f"    {_symbol(symbol)} = {self.variables[name]}.shape[{dim}]")
        return inputs, lines

    # ------------------------------------------------------------ statements

    def _body(self, passing: set[str]) -> list[str]:
        """Return the statements; variables of ``passing`` values end with their last use.

        Without that their memory would live to the end of the function.
        """
        last_use = {name: node.name for node in self.nodes for name in (node.name, *node.inputs())}
        lines: list[str] = []
        current = PLAIN
        for node in self.nodes:
            if node.ambient != current:
                current = node.ambient
                if current != PLAIN:
                    lines.append(f"    with {', '.join(_contexts(current, self.device))}:")
            indent = "    " if current == PLAIN else "        "
            lines.append(f"{indent}{self.variables[node.name]} = {self._call(node)}")
            over = [
                self.variables[name]
                for name in (*node.inputs(), node.name)
                if name in passing and last_use[name] == node.name
            ]
            if over:
                lines.append(f"{indent}del {', '.join(over)}")
        return lines

    def _call(self, node: Node) -> str:
        args = [self._text(arg) for arg in node.args]
        args += [f"{name}={self._text(arg)}" for name, arg in node.kwargs]
        if node.op == "module":
            return f"{self._module(node.target)}({', '.join(args)})"
        target = self.live[node.name].target
        return f"{self._constant(target)}({', '.join(args)})"

    def _module(self, fqn: str) -> str:
        first = self.program.module[fqn].fqn
        given = self.modules.get(first)
        return self._constant(self.trace.model.get_submodule(first) if given is None else given)

    def _text(self, arg: Arg) -> str:
        match arg:
            case plain.Ref(name):
                known = self.program.node[name]
                return self._state(known.target) if known.op == "state" else self.variables[name]
            case plain.Size(expression):
                return self._size(expression)
            case plain.Token():
                return self._constant(self._token(arg))
            case plain.Slice(start, stop, step):
                parts = ", ".join(self._text(part) for part in (start, stop, step))
                return f"slice({parts})"
            case plain.Sequence("list", items):
                return f"[{', '.join(self._text(item) for item in items)}]"
            case plain.Sequence(_, items):
                return f"({''.join(f'{self._text(item)}, ' for item in items)})"
            case plain.Mapping(items):
                return f"{{{', '.join(f'{key!r}: {self._text(item)}' for key, item in items)}}}"
            case plain.EllipsisArg():
                return "..."
            case plain.TrainingSwitch(train, evaluation):
                return repr(train if self.training else evaluation)
        return repr(arg)

    def _size(self, expression: str) -> str:
        found = sorted(symbols_in(expression), key=len, reverse=True)
        self.symbols.update(dict.fromkeys(sorted(found)))
        return f"({_renamed(expression, tuple(found))})"

    def _state(self, name: str) -> str:
        first = self.program.state[name].fqn
        if first in self.state:
            return self._constant(self.state[first])
        tensor = state_tensor(self.trace, first)
        if name in self.trace.constants and self.device is not None:
            tensor = tensor.to(self.device)
        return self._constant(tensor)

    def _token(self, token: plain.Token) -> Any:
        if token.kind == "device":
            return torch.device(token.name if self.device is None else self.device)
        return getattr(torch, token.name)

    def _constant(self, value: Any) -> str:
        name = f"c{len(self.globals)}"
        self.globals[name] = value
        return name


def _contexts(ambient: Ambient, device: torch.device | str | None) -> list[str]:
    found = []
    if ambient.inference:
        found.append("torch.inference_mode()")
    elif not ambient.grad:
        found.append("torch.no_grad()")
    for traced, dtype in ambient.autocast:
        kind = traced if device is None else torch.device(device).type
        found.append(f"torch.autocast({kind!r}, dtype=torch.{dtype})")
    return found


def _symbol(name: str) -> str:
    return f"size_{name}"


@functools.lru_cache(maxsize=4096)
def _renamed(expression: str, symbols: tuple[str, ...]) -> str:
    class Rename(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.Name:
            return ast.Name(_symbol(node.id)) if node.id in symbols else node

    return ast.unparse(Rename().visit(ast.parse(expression, mode="eval")))


def run_whole(
    trace: Trace,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    device: torch.device | str | None = None,
) -> list[Any]:
    """Run every node on the model's own inputs and return the output's values in order."""
    given = {
        spec.name: tensor
        for spec, (_, tensor) in zip(trace.program.inputs, walk_inputs(args, kwargs), strict=True)
    }
    replay = compile_nodes(trace, (node.name for node in trace.program.nodes), device=device)
    results = dict(
        zip(replay.outputs, replay(*(given[name] for name in replay.inputs)), strict=True)
    )
    found: list[Any] = []
    for name in trace.program.output_tree.values():
        node = trace.program.node[name]
        if name in results:
            found.append(results[name])
        elif node.op == "input":
            found.append(given[name])
        else:
            found.append(state_tensor(trace, node.target))
    return found


def state_tensor(trace: Trace, name: str) -> torch.Tensor:
    """Return a parameter, buffer or captured constant by one of its names."""
    if name in trace.constants:
        return trace.constants[name]
    path, _, leaf = trace.program.state[name].fqn.rpartition(".")
    tensor: torch.Tensor = getattr(trace.model.get_submodule(path), leaf)
    return tensor
