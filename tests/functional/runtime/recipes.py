"""Models as lists of steps: they can be cut anywhere without tracer or code generator.

A recipe knows its modules, its inputs and its steps in running order. From it come the eager
model, the ``Program`` that ``stages.split`` cuts, and a stage module for each ``StageSpec``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from autosplit.program import InputSpec, Node, Program, Ref, StateSpec, Symbol, TensorSpec, Tree
from autosplit.stages import StageSpec

TRACED_ROWS = 7
TRACED_LENGTH = 11


@dataclass
class Step:
    """``name = run(root, *inputs)``; ``uses`` are prefixes of the state it reads."""

    name: str
    run: Callable[..., Any]
    inputs: tuple[str, ...]
    uses: tuple[str, ...] = ()
    mutates: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


@dataclass
class Recipe:
    """A model.

    ``make_root`` builds the modules; ``inputs`` makes ``(args, kwargs)`` for a number of rows;
    ``input_tree`` and ``output_tree`` give the structure.
    """

    name: str
    make_root: Callable[[], nn.Module]
    inputs: Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]
    input_tree: Tree
    output_tree: Tree
    steps: list[Step]
    loss: Callable[..., Tensor]
    targets: Callable[[int], tuple[Any, ...]] = lambda rows: ()
    batch_dims: dict[str, int | None] = field(default_factory=dict)
    evaluate: bool = False

    def run(self, root: nn.Module, values: dict[str, Any]) -> dict[str, Any]:
        """Run all steps on named inputs."""
        values = dict(values)
        for step in self.steps:
            values[step.name] = step.run(root, *(values[name] for name in step.inputs))
        return values

    def program(self) -> Program:
        """Return the program with symbolic batch and length."""
        root = self.make_root()
        values = self.run(root.eval(), named(self.input_tree, self.inputs(TRACED_ROWS, 11)))
        states = _states(root)
        input_names = list(dict.fromkeys(self.input_tree.values()))
        nodes = [Node(n, "input", n, value=_spec(values[n])) for n in input_names]
        tensors = {name: state for state in states for name in (state.fqn, *state.aliases)}
        node_of = {name: f"state_{i}" for i, name in enumerate(tensors)}
        nodes += [
            Node(node_of[name], "state", name, value=TensorSpec(state.shape, state.dtype))
            for name, state in tensors.items()
        ]
        for step in self.steps:
            used = [
                node_of[name]
                for name in node_of
                if any(name == p or name.startswith(p + ".") for p in step.uses)
            ]
            nodes.append(
                Node(
                    step.name,
                    "function",
                    "torch.add",
                    args=tuple(Ref(name) for name in (*step.inputs, *used)),
                    value=_spec(values[step.name]),
                    mutates=step.mutates,
                    writes_state=step.writes,
                )
            )
        return Program(
            nodes=tuple(nodes),
            calls=(),
            modules=(),
            states=tuple(states),
            symbols=(
                Symbol("batch", TRACED_ROWS, _sources(values, input_names, "batch")),
                Symbol("length", TRACED_LENGTH, _sources(values, input_names, "length")),
            ),
            inputs=tuple(InputSpec(name, (), self.batch_dims.get(name, 0)) for name in input_names),
            input_tree=self.input_tree,
            output_tree=self.output_tree,
        )


class RecipeStage(nn.Module):
    """The stage of a ``StageSpec``, with the state it holds under the original names."""

    def __init__(self, recipe: Recipe, spec: StageSpec) -> None:
        super().__init__()
        root = recipe.make_root()
        for module_name, module in root.named_modules():
            prefix = f"{module_name}." if module_name else ""
            for store in (module._parameters, module._buffers):
                for name in list(store):
                    if prefix + name not in spec.state:
                        store[name] = None
        for name, child in root.named_children():
            self.add_module(name, child)
        for name, parameter in root.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        for name, buffer in root.named_buffers(recurse=False):
            self.register_buffer(name, buffer, name not in root._non_persistent_buffers_set)
        self.spec = spec
        self.steps = [step for step in recipe.steps if step.name in spec.nodes]

    def forward(self, *taken: Tensor) -> Any:
        values: dict[str, Any] = dict(zip(self.spec.take, taken, strict=True))
        for step in self.steps:
            values[step.name] = step.run(self, *(values[name] for name in step.inputs))
        given = tuple(values[name] for name in self.spec.give)
        return given[0] if len(given) == 1 else given


def named(tree: Tree, value: Any) -> dict[str, Any]:
    """Return the tensors of a nested value by name."""
    if tree.kind == "value":
        return {str(tree.value): value}
    found: dict[str, Any] = {}
    for label, item in zip(tree.keys or range(len(tree.items)), tree.items, strict=True):
        found.update(named(item, value[label]))
    return found


def _spec(value: Any) -> TensorSpec | None:
    if not isinstance(value, Tensor):
        return None
    symbols: dict[int, str] = {TRACED_ROWS: "batch", TRACED_LENGTH: "length"}
    shape = tuple(symbols.get(size, size) for size in value.shape)
    return TensorSpec(shape, str(value.dtype).removeprefix("torch."))


def _sources(values: dict[str, Any], inputs: list[str], symbol: str) -> tuple[tuple[str, int], ...]:
    specs = {name: _spec(values[name]) for name in inputs}
    return tuple(
        (name, dim)
        for name, spec in specs.items()
        if spec is not None
        for dim, size in enumerate(spec.shape)
        if size == symbol
    )


def _states(root: nn.Module) -> list[StateSpec]:
    found: dict[int, StateSpec] = {}
    persistent = set(root.state_dict())
    tensors: list[tuple[str, Tensor]] = [
        *root.named_parameters(remove_duplicate=False),
        *root.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in tensors:
        earlier = found.get(id(tensor))
        found[id(tensor)] = StateSpec(
            fqn=earlier.fqn if earlier else name,
            kind="parameter" if isinstance(tensor, nn.Parameter) else "buffer",
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            requires_grad=tensor.requires_grad,
            persistent=name in persistent,
            aliases=(*earlier.aliases, name) if earlier else (),
        )
    return list(found.values())


def value(name: str) -> Tree:
    """Return the leaf of a tensor."""
    return Tree("value", name)


def constant(what: str | int | float | bool | None) -> Tree:
    """Return the leaf of a constant."""
    return Tree("constant", what)


def tuple_of(*items: Tree) -> Tree:
    """Return a tuple structure."""
    return Tree("tuple", items=items)


def dict_of(**items: Tree) -> Tree:
    """Return a dict structure."""
    return Tree("dict", keys=tuple(items), items=tuple(items.values()))


def arguments(*args: Tree, **kwargs: Tree) -> Tree:
    """Return the structure of ``(args, kwargs)``."""
    return tuple_of(tuple_of(*args), dict_of(**kwargs))
