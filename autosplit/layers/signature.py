"""Which layers are alike: the same operations on the same shapes, with the same constants."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

from autosplit.program import Node, Program, StateSpec, TensorSpec, arguments
from autosplit.serialize import to_data


def structure(program: Program, nodes: Sequence[Node], live: Collection[str]) -> str:
    """Return a signature that is equal for layers that compute the same and cost the same.

    Values are numbered in the order in which they appear and state is known by its shape, so
    that names do not matter. Operations, constants, modes, shapes, dtypes, strides and the flow
    of gradients do. Readers that are not ``live`` do not count.
    """
    return _Signature(program, nodes, live).digest()


class _Signature:
    def __init__(self, program: Program, nodes: Sequence[Node], live: Collection[str]) -> None:
        self._program = program
        self._live = live
        self._nodes = nodes
        self._number: dict[str, int] = {}
        self._lines: list[Any] = []

    def digest(self) -> str:
        for node in self._nodes:
            args = self._plain((node.args, tuple(arg for _, arg in node.kwargs)))
            keywords = [name for name, _ in node.kwargs]
            target = self._module(node.target) if node.op == "module" else node.target
            values = [_tensor(spec) for spec in node.tensors]
            self._lines.append([target, args, keywords, values, to_data(node.ambient)])
            self._number[node.name] = len(self._number)
        self._lines.append(self._outputs())
        text = json.dumps(self._lines, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def _outputs(self) -> list[int]:
        inside = {node.name for node in self._nodes}
        returned = set(self._program.outputs)
        return [
            self._number[name]
            for name in (node.name for node in self._nodes)
            if name in returned
            or any(user not in inside and user in self._live for user in self._program.users[name])
        ]

    def _plain(self, arg: Any) -> Any:
        """Return an argument as JSON data with references numbered."""
        if isinstance(arg, arguments.Ref):
            return self._reference(self._program.node[arg.name])
        if isinstance(arg, arguments.Slice):
            return ["slice", *(self._plain(part) for part in (arg.start, arg.stop, arg.step))]
        if isinstance(arg, arguments.Sequence):
            return [arg.kind, *(self._plain(item) for item in arg.items)]
        if isinstance(arg, arguments.Mapping):
            return ["dict", *([key, self._plain(item)] for key, item in arg.items)]
        if isinstance(arg, tuple):
            return [self._plain(item) for item in arg]
        return [type(arg).__name__, to_data(arg)]

    def _reference(self, source: Node) -> list[Any]:
        if source.op == "state":
            return ["state", *_state(self._program.state[source.target])]
        if source.name not in self._number:
            self._lines.append(["input", [_tensor(spec) for spec in source.tensors]])
            self._number[source.name] = len(self._number)
        return ["value", self._number[source.name]]

    def _module(self, name: str) -> list[Any]:
        spec = self._program.module[name]
        children = [self._module(f"{spec.fqn}.{child}") for child in spec.children]
        states = [_state(self._program.state[f"{spec.fqn}.{own}"]) for own in spec.state]
        return [spec.qualified, to_data(spec.constructor), spec.training, states, children]


def _tensor(spec: TensorSpec) -> list[Any]:
    return [list(spec.shape), spec.dtype, list(spec.stride), spec.requires_grad]


def _state(spec: StateSpec) -> list[Any]:
    return [spec.kind, list(spec.shape), spec.dtype, spec.requires_grad]
