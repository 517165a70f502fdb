"""Small programs made by hand, and random ones for hypothesis."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from autosplit.program import (
    Arg,
    Call,
    Constructor,
    InputSpec,
    ModuleSpec,
    Node,
    Program,
    Ref,
    StateSpec,
    TensorSpec,
    Tree,
)


class Builder:
    """Writes down a program operation by operation."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.calls = [Call(0, "module", "Model", "", None)]
        self.modules = [ModuleSpec("", "Model", "Model", leaf=False)]
        self.states: list[StateSpec] = []
        self.storage = itertools.count()
        self.inputs: list[InputSpec] = []

    def call(self, fqn: str, parent: int = 0) -> int:
        """Enter a module and return the number of the call."""
        if all(spec.fqn != fqn for spec in self.modules):
            self.modules.append(ModuleSpec(fqn, "Block", "Block", leaf=False))
        self.calls.append(Call(len(self.calls), "module", "Block", fqn, parent))
        return len(self.calls) - 1

    def path(self, call: int) -> tuple[int, ...]:
        """Return the call path of a call, the root first."""
        found = [call]
        while (parent := self.calls[found[-1]].parent) is not None:
            found.append(parent)
        return tuple(reversed(found))

    def input(self, name: str, shape: tuple[int, ...] = (64, 512)) -> str:
        """Add a model input."""
        self.nodes.append(Node(name, "input", name, value=self._spec(shape)))
        self.inputs.append(InputSpec(name, ("args", len(self.inputs)), 0))
        return name

    def buffer(self, fqn: str) -> str:
        """Add a buffer and a node that reads it."""
        self.states.append(StateSpec(fqn, "buffer", (512,), "float32"))
        self.nodes.append(Node(fqn, "state", fqn, value=self._spec((512,))))
        return fqn

    def parameter(self, fqn: str) -> str:
        """Add a parameter and a node that reads it."""
        self.states.append(StateSpec(fqn, "parameter", (512, 512), "float32", requires_grad=True))
        self.nodes.append(Node(fqn, "state", fqn, value=self._spec((512, 512))))
        return fqn

    def linear(self, name: str, source: str, fqn: str, parent: int = 0) -> str:
        """Call a leaf ``Linear``."""
        if all(spec.fqn != fqn for spec in self.modules):
            self.modules.append(
                ModuleSpec(
                    fqn,
                    "Linear",
                    "torch.nn.Linear",
                    leaf=True,
                    constructor=Constructor("torch.nn.Linear", (512, 512)),
                    state=("weight",),
                )
            )
            self.states.append(
                StateSpec(f"{fqn}.weight", "parameter", (512, 512), "float32", requires_grad=True)
            )
        self.calls.append(Call(len(self.calls), "module", "Linear", fqn, parent))
        calls = self.path(len(self.calls) - 1)
        value = self._spec((64, 512), grad=True)
        self.nodes.append(Node(name, "module", fqn, (Ref(source),), value=value, calls=calls))
        return name

    def op(
        self,
        name: str,
        target: str,
        *sources: str,
        call: int = 0,
        view_of: str | None = None,
        mutates: Sequence[str] = (),
        writes_state: Sequence[str] = (),
        extra: Sequence[Arg] = (),
        shape: tuple[int, ...] = (64, 512),
    ) -> str:
        """Call a function; ``view_of`` names the node whose memory the result shares."""
        spec = self._spec(shape, grad=True)
        if view_of is not None:
            storage = next(n for n in self.nodes if n.name == view_of).tensors[0].storage
            spec = TensorSpec(shape, "float32", (512, 1), storage, True)
        self.nodes.append(
            Node(
                name,
                "function",
                target,
                (*map(Ref, sources), *extra),
                value=spec,
                calls=self.path(call),
                mutates=tuple(mutates),
                writes_state=tuple(writes_state),
            )
        )
        return name

    def recurrent(self, name: str, source: str, call: int = 0) -> tuple[str, str, str]:
        """Call what returns ``(output, (hidden, cell))``; return the names of the three."""
        first, hidden, cell = (self._spec((64, 512), grad=True) for _ in range(3))
        self._part(name, "torch.lstm", (Ref(source),), (first, None), call)
        item = "operator.getitem"
        self._part(f"{name}_state", item, (Ref(name), 1), (hidden, cell), call)
        self._part(f"{name}_output", item, (Ref(name), 0), first, call)
        self._part(f"{name}_hidden", item, (Ref(f"{name}_state"), 0), hidden, call)
        self._part(f"{name}_cell", item, (Ref(f"{name}_state"), 1), cell, call)
        return f"{name}_output", f"{name}_hidden", f"{name}_cell"

    def _part(
        self,
        name: str,
        target: str,
        args: tuple[Arg, ...],
        value: TensorSpec | tuple[TensorSpec | None, ...],
        call: int,
    ) -> None:
        self.nodes.append(Node(name, "function", target, args, value=value, calls=self.path(call)))

    def build(self, *outputs: str) -> Program:
        """Return the program."""
        leaves = tuple(Tree("value", name) for name in outputs)
        arguments = tuple(Tree("value", spec.name) for spec in self.inputs)
        return Program(
            nodes=tuple(self.nodes),
            calls=tuple(self.calls),
            modules=tuple(self.modules),
            states=tuple(self.states),
            symbols=(),
            inputs=tuple(self.inputs),
            input_tree=Tree("tuple", items=arguments),
            output_tree=Tree("tuple", items=leaves),
        )

    def _spec(self, shape: tuple[int, ...], *, grad: bool = False) -> TensorSpec:
        return TensorSpec(shape, "float32", (512, 1)[-len(shape) :], next(self.storage), grad)


_KINDS = ("linear", "add", "add", "relu", "view", "add_", "count", "recurrent")


@st.composite
def programs(draw: st.DrawFn, largest: int = 24) -> Program:
    """Return random programs with blocks, skips, views, tuples, in-place writes and buffers."""
    builder = Builder()
    values = [builder.input("x"), builder.input("y")]
    counter = builder.buffer("counter") if draw(st.booleans()) else None
    blocks = [0, *(builder.call(f"h.{i}") for i in range(draw(st.integers(0, 3))))]
    for index in range(draw(st.integers(1, largest))):
        name = f"v{index}"
        source = draw(st.sampled_from(values[-6:]))
        call = draw(st.sampled_from(blocks))
        kind = draw(st.sampled_from(_KINDS))
        if kind == "recurrent":
            values.extend(builder.recurrent(name, source, call))
            continue
        if kind == "linear":
            builder.linear(name, source, f"fc{index % 5}", call)
        elif kind == "add":
            builder.op(name, "torch.add", source, draw(st.sampled_from(values)), call=call)
        elif kind == "relu":
            builder.op(name, "torch.relu", source, call=call)
        elif kind == "view":
            builder.op(name, "torch.Tensor.view", source, call=call, view_of=source)
        elif kind == "add_":
            other = draw(st.sampled_from(values))
            builder.op(
                *(name, "torch.Tensor.add_", source, other),
                call=call,
                view_of=source,
                mutates=_sharing(builder, source),
            )
        elif counter is not None:
            builder.op(
                *(name, "torch.Tensor.add_", counter, source),
                call=call,
                view_of=counter,
                mutates=(counter,),
                writes_state=("counter",),
            )
        else:
            builder.op(name, "torch.tanh", source, call=call)
        values.append(name)
    outputs = draw(st.lists(st.sampled_from(values[2:]), min_size=1, max_size=3, unique=True))
    return builder.build(*outputs)


def _sharing(builder: Builder, name: str) -> list[str]:
    storage = next(n for n in builder.nodes if n.name == name).tensors[0].storage
    return [n.name for n in builder.nodes if n.tensors[0].storage == storage]
