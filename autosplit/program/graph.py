"""The traced program: its nodes in running order and everything they refer to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from autosplit.checks import require_known, require_unique
from autosplit.program.arguments import DTYPE_BYTES, Dim, Symbol, TensorSpec
from autosplit.program.records import (
    Call,
    InputSpec,
    ModuleSpec,
    Node,
    StateSpec,
    Tree,
)
from autosplit.sizes import evaluate


@dataclass(frozen=True)
class Program:
    """A traced model.

    ``nodes`` stand in the order in which they ran; inputs come first. An element of a tuple
    result is a node of its own with target ``operator.getitem``.

    ``mode_bound`` says that the forward does other operations in the other mode: what is
    recorded holds in the mode ``training`` alone.
    """

    nodes: tuple[Node, ...]
    calls: tuple[Call, ...]
    modules: tuple[ModuleSpec, ...]
    states: tuple[StateSpec, ...]
    symbols: tuple[Symbol, ...]
    inputs: tuple[InputSpec, ...]
    input_tree: Tree
    output_tree: Tree
    training: bool = True
    mode_bound: bool = False
    tracer: str = "torch_level"
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_unique(self, "node", (node.name for node in self.nodes))
        seen: set[str] = set()
        for node in self.nodes:
            require_known(self, f"argument of {node.name}", node.inputs(), seen)
            seen.add(node.name)
        require_known(self, "output", self.output_tree.values(), seen)
        require_known(self, "input", (spec.name for spec in self.inputs), seen)

    @cached_property
    def node(self) -> dict[str, Node]:
        """Nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def position(self) -> dict[str, int]:
        """Position of each node in running order."""
        return {node.name: index for index, node in enumerate(self.nodes)}

    @cached_property
    def users(self) -> dict[str, tuple[str, ...]]:
        """Names of the nodes that read each node, in running order."""
        found: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.inputs():
                found[name].append(node.name)
        return {name: tuple(users) for name, users in found.items()}

    @cached_property
    def module(self) -> dict[str, ModuleSpec]:
        """Modules by every name they have."""
        return {name: spec for spec in self.modules for name in (spec.fqn, *spec.aliases)}

    @cached_property
    def state(self) -> dict[str, StateSpec]:
        """Parameters, buffers and constants by every name they have."""
        return {name: spec for spec in self.states for name in (spec.fqn, *spec.aliases)}

    @cached_property
    def symbol(self) -> dict[str, Symbol]:
        """Symbols by name."""
        return {symbol.name: symbol for symbol in self.symbols}

    @property
    def operations(self) -> tuple[Node, ...]:
        """Nodes that compute: function and module calls, in running order."""
        return tuple(node for node in self.nodes if node.op in ("function", "module"))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the values the model returns, without repeats."""
        return tuple(dict.fromkeys(self.output_tree.values()))

    def states_of(self, node: Node) -> tuple[str, ...]:
        """Return first names of the parameters, buffers and constants a node uses itself."""
        found: dict[str, None] = {}
        if node.op == "module":
            prefix = self.module[node.target].fqn
            found.update(dict.fromkeys(self._under(prefix)))
        for name in node.inputs():
            source = self.node[name]
            if source.op == "state":
                found[self.state[source.target].fqn] = None
        return tuple(found)

    def states_in(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return first names of the state that the named nodes use themselves, each once."""
        found = (state for name in names for state in self.states_of(self.node[name]))
        return tuple(dict.fromkeys(found))

    def _under(self, fqn: str) -> Iterator[str]:
        spec = self.module[fqn]
        head = f"{fqn}." if fqn else ""
        for name in spec.state:
            yield self.state[head + name].fqn
        for child in spec.children:
            yield from self._under(self.module[head + child].fqn)

    def evaluate(self, expression: Dim, sizes: dict[str, int] | None = None) -> int:
        """Return the number behind a size for given symbol values (default: the examples)."""
        if isinstance(expression, int):
            return expression
        values = {symbol.name: symbol.example for symbol in self.symbols}
        return int(evaluate(expression, {**values, **(sizes or {})}))

    def nbytes(self, spec: TensorSpec, sizes: dict[str, int] | None = None) -> int:
        """Return the bytes of a dense tensor of this spec."""
        count = 1
        for dim in spec.shape:
            count *= self.evaluate(dim, sizes)
        return count * DTYPE_BYTES[spec.dtype]
