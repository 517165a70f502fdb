"""Random programs, run whole and run in stages on symbols instead of tensors.

A value is a name for a cell of memory, or for a part of one (a view). What a read gives is a
term: ``("op", name, *terms)``, a part of a term, or a term that was written to. Two runs agree
when every operation reads the same terms.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autosplit.program import (
    InputSpec,
    Node,
    Program,
    Ref,
    Size,
    StateSpec,
    Symbol,
    TensorSpec,
    Tree,
)
from autosplit.stages import Routing, StageSpec

Term = Any


@dataclass
class Cell:
    """Memory."""

    term: Term


@dataclass(frozen=True)
class Alias:
    """A name for a part of a cell; ``path`` are the views that lead to it."""

    cell: Cell
    path: tuple[str, ...] = ()

    def read(self) -> Term:
        return part(self.path, self.cell.term)

    def write(self, writer: str) -> None:
        self.cell.term = written(writer, self.path, self.cell.term)

    def __hash__(self) -> int:
        return hash((id(self.cell), self.path))


def part(path: tuple[str, ...], term: Term) -> Term:
    """Return the part of a term, in a form that does not depend on where it was cut out."""
    if not path:
        return term
    if term[0] == "part":
        return part(term[1] + path, term[2])
    if term[0] == "written":
        _, writer, place, old = term
        if place and path[: len(place)] == place:
            return part(path[len(place) :], written(writer, (), part(place, old)))
        if place[: len(path)] == path:
            return ("written", writer, place[len(path) :], part(path, old))
    return ("part", path, term)


def written(writer: str, path: tuple[str, ...], term: Term) -> Term:
    """Return a term after a write to a part of it."""
    return ("written", writer, path, term)


def run(program: Program, names: tuple[str, ...], values: dict[str, Alias]) -> dict[str, Term]:
    """Run operations in order; return what each one read and made."""
    seen: dict[str, Term] = {}
    for name in names:
        node = program.node[name]
        taken = [values[source] for source in node.inputs() if source in values]
        state = [s for s in node.inputs() if program.node[s].op == "state"]
        terms = [alias.read() for alias in taken]
        kind = node.target.rpartition(".")[2]
        if kind == "view":
            values[name] = Alias(taken[0].cell, (*taken[0].path, name))
        elif kind == "write_":
            taken[0].write(name)
            values[name] = taken[0]
        else:
            states = [program.state[program.node[s].target].fqn for s in state]
            values[name] = Alias(Cell(("op", name, *terms, *states)))
        seen[name] = (*terms, values[name].read())
    return seen


def fresh_inputs(program: Program) -> dict[str, Alias]:
    """Return a cell for every input."""
    return {spec.name: Alias(Cell(("input", spec.name))) for spec in program.inputs}


def run_whole(program: Program) -> tuple[dict[str, Term], list[Term]]:
    """Run the program; return what every operation saw, and the outputs."""
    values = fresh_inputs(program)
    seen = run(program, tuple(node.name for node in program.operations), values)
    return seen, [values[name].read() for name in program.outputs]


def run_stages(
    program: Program, specs: tuple[StageSpec, ...], routing: Routing
) -> tuple[dict[str, Term], list[Term]]:
    """Run stage after stage, sending over the cuts what the routing table says."""
    seen: dict[str, Term] = {}
    sent: dict[str, Term] = {}
    values: dict[str, Alias] = {}
    for spec in specs:
        values = fresh_inputs(program)
        values.update({name: Alias(Cell(term)) for name, term in sent.items()})
        inside: dict[str, Alias] = {}
        for name in spec.take:
            own = values[name].read()
            inside[name] = Alias(Cell(own)) if name in spec.clone else values[name]
        borrowed = {name: values[name].cell.term for name in spec.take if name not in spec.clone}
        seen.update(run(program, spec.nodes, inside))
        for name, term in borrowed.items():
            assert values[name].cell.term == term, f"{name} was written to without a copy"
        values.update({name: inside[name] for name in spec.give})
        if spec.index < spec.count - 1:
            sent = {name: values[name].read() for name in routing.cuts[spec.index]}
    return seen, [values[name].read() for name in program.outputs]


# ---------------------------------------------------------------- programs


@dataclass(frozen=True)
class Step:
    """One random operation: kind ("op", "view", "write_"), positions of inputs, state, size."""

    kind: str
    sources: tuple[int, ...]
    states: tuple[int, ...] = ()
    sized: bool = False


STATES = (
    StateSpec("w", "parameter", (2,), "float32", requires_grad=True, aliases=("tied",)),
    StateSpec("frozen", "parameter", (2,), "float32"),
    StateSpec("mask", "buffer", (2,), "bool", persistent=False),
    StateSpec("unused", "parameter", (2,), "float32", requires_grad=True),
)
STATE_NAMES = ("w", "tied", "frozen", "mask")


def assert_stages_compute_the_same(
    program: Program, specs: tuple[StageSpec, ...], routing: Routing
) -> None:
    """Fail unless the stages give the outputs of the program, and see its values on the way."""
    seen, outputs = run_whole(program)
    seen_in_stages, outputs_of_stages = run_stages(program, specs, routing)
    assert outputs_of_stages == outputs
    for name, terms in seen_in_stages.items():
        assert terms == seen[name]


def program_of(
    inputs: int,
    steps: list[Step],
    outputs: list[int],
    *,
    state_names: tuple[str, ...] = STATE_NAMES,
) -> Program:
    """Return a program; writes record the views of the memory they write to."""
    spec = TensorSpec(("batch", 3), "float32")
    names = [f"x{i}" for i in range(inputs)]
    nodes = [
        Node(name, "input", name, value=replace(spec, storage=i)) for i, name in enumerate(names)
    ]
    nodes += [
        Node(f"s_{name}", "state", name, value=TensorSpec((2,), "float32")) for name in state_names
    ]
    root = {name: name for name in names}
    for i, step in enumerate(steps):
        name = f"n{i}"
        sources = [names[k % len(names)] for k in step.sources]
        refs: tuple[Any, ...] = tuple(Ref(source) for source in dict.fromkeys(sources))
        if step.kind == "op":
            refs += tuple(Ref(f"s_{state_names[k]}") for k in dict.fromkeys(step.states))
            root[name] = name
        else:
            refs = refs[:1]
            root[name] = root[sources[0]]
        memory = replace(spec, storage=[*names, name].index(root[name]))
        mutates = tuple(n for n in names if root[n] == root[name]) if step.kind == "write_" else ()
        nodes.append(
            Node(
                name,
                "function",
                f"torch.{step.kind}",
                args=(*refs, Size("batch")) if step.sized else refs,
                value=memory,
                mutates=mutates,
                returns_argument=step.kind == "write_",
            )
        )
        names.append(name)
    chosen = tuple(Tree("value", names[k % len(names)]) for k in outputs)
    inputs_tree = tuple(Tree("value", f"x{i}") for i in range(inputs))
    return Program(
        nodes=tuple(nodes),
        calls=(),
        modules=(),
        states=STATES,
        symbols=(Symbol("batch", 4, tuple((f"x{i}", 0) for i in range(inputs))),),
        inputs=tuple(InputSpec(f"x{i}", ("args", i), 0) for i in range(inputs)),
        input_tree=Tree("tuple", items=(Tree("tuple", items=inputs_tree), Tree("dict"))),
        output_tree=Tree("tuple", items=chosen),
    )
