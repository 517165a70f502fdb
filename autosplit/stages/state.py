"""Which parameters, buffers and constants each stage holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autosplit.errors import AutosplitError
from autosplit.program import Node, Program
from autosplit.stages.placement import Placement
from autosplit.stages.types import SharedState


@dataclass(frozen=True)
class Holdings:
    """State per stage, and what several stages hold; the fields are those of ``Routing``."""

    names: tuple[tuple[str, ...], ...]
    shared: tuple[SharedState, ...]
    replicated: tuple[SharedState, ...]
    aliases: tuple[tuple[str, str], ...]
    unused: tuple[str, ...]
    buffers: tuple[tuple[str, ...], ...]


def hold(placement: Placement) -> Holdings:
    """Give every stage the state its operations use, and the first one what nobody uses.

    Raises
    ------
    AutosplitError
        If the forward writes to a parameter, writes to a buffer that several stages use, or
        returns state itself: copies in different stages would drift apart.
    """
    program = placement.program
    used = [_used(placement, stage) for stage in range(placement.count)]
    held = {program.state[name].fqn for names in used for name in names}
    unused = tuple(spec.fqn for spec in program.states if spec.fqn not in held and spec.persistent)
    used[0].update(dict.fromkeys(unused))
    rank = {name: index for index, name in enumerate(_all_names(program))}
    names = tuple(tuple(sorted(stage, key=rank.__getitem__)) for stage in used)
    holders = _holders(program, names)
    _refuse_returned_state(program)
    _refuse_writes(placement, holders)
    several = [
        SharedState(fqn, tuple(places)) for fqn, places in holders.items() if len(places) > 1
    ]
    trained = {spec.fqn for spec in program.states if spec.requires_grad}
    return Holdings(
        names=names,
        shared=tuple(state for state in several if state.name in trained),
        replicated=tuple(state for state in several if state.name not in trained),
        aliases=tuple(
            (alias, spec.fqn)
            for spec in program.states
            if spec.persistent
            for alias in spec.aliases
        ),
        unused=unused,
        buffers=tuple(
            tuple(name for name in stage if not program.state[name].persistent) for stage in names
        ),
    )


def _used(placement: Placement, stage: int) -> dict[str, None]:
    program = placement.program
    found: dict[str, None] = {}
    for node in placement.nodes(stage):
        if node.op == "module":
            found.update(dict.fromkeys(_under(program, node.target)))
        for source in node.inputs():
            if program.node[source].op == "state":
                found[program.node[source].target] = None
    return found


def _under(program: Program, name: str) -> Iterator[str]:
    """Yield the names of a module's state, under the name by which the module was reached."""
    spec = program.module[name]
    head = f"{name}." if name else ""
    for own in spec.state:
        yield head + own
    for child in spec.children:
        yield from _under(program, head + child)


def _all_names(program: Program) -> Iterator[str]:
    for spec in program.states:
        yield from (spec.fqn, *spec.aliases)


def _holders(
    program: Program, names: tuple[tuple[str, ...], ...]
) -> dict[str, list[tuple[int, str]]]:
    """Return ``first name -> [(stage, name in that stage)]``, one entry per stage."""
    found: dict[str, list[tuple[int, str]]] = {spec.fqn: [] for spec in program.states}
    for stage, held in enumerate(names):
        for name in held:
            places = found[program.state[name].fqn]
            if not places or places[-1][0] != stage:
                places.append((stage, name))
    return found


def _refuse_returned_state(program: Program) -> None:
    for name in program.outputs:
        node = program.node[name]
        if node.op == "state":
            raise AutosplitError(
                f"the model returns its own {program.state[node.target].kind} {node.target!r}",
                cause="training would change what was returned",
                hint="return a copy of it",
            )


def _refuse_writes(placement: Placement, holders: dict[str, list[tuple[int, str]]]) -> None:
    program = placement.program
    for name in placement.stage_of:
        node = program.node[name]
        for written in _written(program, node):
            spec = program.state[written]
            if spec.kind == "parameter":
                raise AutosplitError(
                    f"operation {name!r} writes to parameter {written!r} in the forward",
                    cause="a parameter belongs to the optimizer",
                    hint="make it a buffer",
                )
            # The write may come through a view that an earlier stage has sent.
            stages = sorted({placement.stage_of[name], *(k for k, _ in holders[spec.fqn])})
            if len(stages) > 1:
                raise AutosplitError(
                    f"{spec.kind} {written!r} is written in the forward by {name!r} and used "
                    f"by stages {', '.join(map(str, stages))}",
                    cause="copies in different stages would drift apart",
                    hint="keep all its users in one stage",
                )


def _written(program: Program, node: Node) -> Iterator[str]:
    yield from node.writes_state
    if node.op == "module" and program.module[node.target].training_state:
        for name in _under(program, node.target):
            if program.state[name].kind == "buffer":
                yield name
