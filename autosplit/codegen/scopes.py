"""The working data of one stage: its graph, and the scopes, statements and loops made of it.

A *value* is the name of a node, or a quantity that is not a node: ``$device``, ``$training``
and ``$symbol:NAME``. Scopes pass values to one another as arguments and results.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from autosplit.codegen.expressions import Expr, Leaf, leaves, values
from autosplit.program import PLAIN, Ambient, Call, Node, Program, TensorSpec
from autosplit.stages.types import StageSpec


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A place where the emitted code differs from the recorded operations.

    Parameters
    ----------
    kind
        Name of the rule ("no-op", "causal mask", "flat").
    where
        Operation or module it was applied to.
    why
        Why the result is the same.
    """

    kind: str
    where: str
    why: str


@dataclass
class StageGraph:
    """The operations of one stage, while passes rewrite them.

    Parameters
    ----------
    nodes
        Operations in running order, by name.
    give
        Values the stage returns; several entries may be one value after a rewrite.
    names
        Source names of values, by call and value.
    """

    program: Program
    spec: StageSpec
    nodes: dict[str, Node]
    give: list[str]
    names: dict[int, dict[str, list[str]]] = field(default_factory=dict)
    rewrites: list[Rewrite] = field(default_factory=list)

    def source(self, value: str) -> Node | None:
        """Return the node behind a value; None for ``$`` quantities."""
        return self.nodes.get(value) or self.program.node.get(value)

    def tensor(self, value: str) -> TensorSpec | None:
        """Return shape and dtype of a value, None when it is not a tensor."""
        node = self.source(value)
        return node.value if node is not None and isinstance(node.value, TensorSpec) else None

    def state(self, value: str) -> str | None:
        """Return the name of the parameter, buffer or constant behind a value."""
        node = self.source(value)
        return node.target if node is not None and node.op == "state" else None

    @cached_property
    def readers(self) -> dict[str, list[str]]:
        """Operations that read each value, in running order; ``$give`` for returned ones."""
        found: dict[str, list[str]] = {}
        for node in self.nodes.values():
            for value in node.inputs():
                found.setdefault(value, []).append(node.name)
        for value in self.give:
            found.setdefault(value, []).append("$give")
        return found

    def age(self, value: str) -> int:
        """Return the place of a value in the program's order."""
        return self._ages[value]

    @cached_property
    def _ages(self) -> dict[str, int]:
        return {node.name: at for at, node in enumerate(self.program.nodes)}

    def local_names(self, call: int, value: str) -> list[str]:
        """Return the source names of a value in one call."""
        return self.names.get(call, {}).get(value, [])

    def held_state(self, name: str, prefix: str = "") -> str | None:
        """Return the name under ``prefix`` by which the stage holds a state."""
        spec = self.program.state[name]
        names = (name, spec.fqn, *spec.aliases)
        return next((n for n in names if n in self.held and n.startswith(prefix)), None)

    def held_module(self, name: str, prefix: str = "") -> str | None:
        """Return the name under ``prefix`` by which the stage holds a module."""
        spec = self.program.module[name]
        for alias in (name, spec.fqn, *spec.aliases):
            if alias.startswith(prefix) and self.held.issuperset(self.state_under(alias)):
                return alias
        return None

    def state_under(self, module: str) -> Iterator[str]:
        """Yield the names of all state of a module, under the name given."""
        spec = self.program.module[module]
        head = f"{module}." if module else ""
        for name in spec.state:
            yield head + name
        for child in spec.children:
            yield from self.state_under(head + child)

    @cached_property
    def held(self) -> frozenset[str]:
        """Names under which the stage holds state."""
        return frozenset(self.spec.state)

    def effect(self, name: str) -> bool:
        """Whether an operation does more than return a value."""
        node = self.nodes[name]
        if node.mutates or node.writes_state or node.random:
            return True
        if node.op != "module":
            return False
        spec = self.program.module[node.target]
        return spec.inplace or spec.random or spec.training_state

    def writes(self, name: str) -> bool:
        """Whether an operation changes memory that others may read."""
        node = self.nodes[name]
        if node.mutates or node.writes_state:
            return True
        return node.op == "module" and self.program.module[node.target].inplace


# ---------------------------------------------------------------- scopes


@dataclass(eq=False)
class Scope:
    """What one call does inside this stage: the body of a method or function.

    Parameters
    ----------
    kind
        "stage", "module" (a class of its own), "sequence" (an ``nn.Sequential`` that its
        constructor says all about) or "function" (a helper).
    call
        The call; of the root for a stage.
    fqn
        Name under which the stage holds the module ("" for a stage or function).
    items
        Operations and inner scopes, in running order.
    part
        "Head", "Middle" or "Tail" when the stage runs a part of the module.
    inputs, outputs
        Values taken and returned.
    sizes
        Symbol to ``(value, dimension)`` from which it is read.
    device_of
        Value whose device is the running one.
    ambient
        Global state in which the scope is called.
    body
        Statements and loops.
    variables
        Name of each value here.
    same_helper
        Of each helper call inside, the first call with the same body.
    model, passed
        The call whose body this one uses, and what it passes for each of its arguments.
    optional
        Arguments that some calls of this body leave out.
    roles
        Argument behind each parameter name of ``forward``, where names of values do not say.
    lists
        Elements of each list that the body fills, all that it ever has.
    returned
        What the body returns in place of ``outputs``, where lists hold some of them.
    packed
        First and last (exclusive) of the inputs that arrive as one list, and the list.
    """

    kind: Literal["stage", "module", "sequence", "function"]
    call: Call
    fqn: str
    items: list[str | Scope] = field(default_factory=list)
    part: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    sizes: dict[str, tuple[str, int]] = field(default_factory=dict)
    device_of: str | None = None
    ambient: Ambient = PLAIN
    body: list[Statement | Loop] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    same_helper: dict[int, int] = field(default_factory=dict)
    model: Scope | None = None
    passed: list[str | None] = field(default_factory=list)
    roles: dict[str, str] = field(default_factory=dict)
    optional: set[str] = field(default_factory=set)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    returned: tuple[Expr, ...] | None = None
    packed: tuple[int, int, str] | None = None

    def nodes(self) -> Iterator[str]:
        """Yield the operations of the scope and those inside it, in running order."""
        for item in self.items:
            if isinstance(item, Scope):
                yield from item.nodes()
            else:
                yield item

    def scopes(self) -> Iterator[Scope]:
        """Yield the scopes inside it, inner ones first."""
        for item in self.items:
            if isinstance(item, Scope):
                yield from item.scopes()
                yield item

    def leaves(self) -> Iterator[Leaf]:
        """Yield the leaves of the body, those of all rounds of its loops included."""
        for part in self.body:
            for statements in part.rounds if isinstance(part, Loop) else [[part]]:
                for statement in statements:
                    yield from statement.leaves()

    def arguments(self) -> list[str]:
        """Return what the body is given, a list in the place of its elements."""
        if self.packed is None:
            return self.inputs
        start, stop, value = self.packed
        return [*self.inputs[:start], value, *self.inputs[stop:]]

    def argument_names(self) -> list[str]:
        """Return the names of ``arguments()``."""
        return [self.variables[value] for value in self.arguments()]

    def packed_inputs(self) -> list[str]:
        """Return the inputs that arrive as one list."""
        return [] if self.packed is None else self.inputs[self.packed[0] : self.packed[1]]

    def results(self) -> list[str]:
        """Return the values that the last line of the body reads, lists among them."""
        if self.returned is None:
            return self.outputs
        return [value for expr in self.returned for value in values(expr)]

    @property
    def text(self) -> Scope:
        """The call whose body is written for this one."""
        return self.model or self

    @property
    def height(self) -> int:
        """How many scopes stand inside one another in it."""
        inner = [item.height for item in self.items if isinstance(item, Scope)]
        return 1 + max(inner, default=-1)

    @property
    def prefix(self) -> str:
        """What the names of the scope's own modules and state begin with."""
        return f"{self.fqn}." if self.fqn else ""

    @property
    def owns_modules(self) -> bool:
        """Whether ``self`` is at hand."""
        return self.kind != "function"


@dataclass(eq=False)
class Statement:
    """``targets = expr`` or ``place = expr``.

    Parameters
    ----------
    targets
        Values that get a name; None for an element nobody reads.
    expr
        Right-hand side.
    item
        The operation or scope it comes from; None for what a list needs.
    place
        Subscript or attribute that is assigned, instead of targets.
    ambient
        Global state it needs.
    guard
        Argument without which the statement is left out.
    """

    targets: tuple[str | None, ...]
    expr: Expr
    item: str | Scope | None
    place: Expr | None = None
    ambient: Ambient = PLAIN
    guard: str | None = None

    def leaves(self) -> Iterator[Leaf]:
        """Yield the leaves of what it assigns to and of what it computes, in this order."""
        if self.place is not None:
            yield from leaves(self.place)
        yield from leaves(self.expr)

    def made(self) -> Iterator[str]:
        """Yield the values it names."""
        return (target for target in self.targets if target is not None)


@dataclass(eq=False)
class Loop:
    """Statements repeated over modules.

    Parameters
    ----------
    body
        The statements that are written: those of the first round, which read what is carried
        under the name it gets in the loop.
    rounds
        The statements of each round.
    lists
        Container and first index of each list that is walked.
    carried
        Value of the first round to the value that takes its place before the loop.
    variable
        Name for the item, from the model's source.
    copies
        Carried values that start as a copy, because what they start from is read again.
    gathers
        Statement and target of values that are read after the loop, with the values that stand
        before them where rounds see the list grow.
    growing
        Statement and leaf that is a list of the rounds before: the key in ``gathers``.
    pops
        Statement and leaf that takes the elements of a list from its end: a value a round.
    """

    body: list[Statement]
    rounds: list[list[Statement]]
    lists: list[tuple[str, int]]
    carried: dict[str, str]
    variable: str | None = None
    copies: list[tuple[str, str]] = field(default_factory=list)
    gathers: dict[tuple[int, int], tuple[str, ...] | None] = field(default_factory=dict)
    growing: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    pops: dict[tuple[int, int], tuple[str, ...]] = field(default_factory=dict)
