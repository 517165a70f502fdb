"""Which operations run, and in which stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autosplit.errors import AutosplitError
from autosplit.program import Node, Program


@dataclass(frozen=True)
class Placement:
    """Live operations and their stages.

    Parameters
    ----------
    program
        The whole program.
    count
        Number of stages.
    stage_of
        Stage of every live operation, in running order.
    again
        Per stage, operations of earlier stages that it runs once more.
    """

    program: Program
    count: int
    stage_of: dict[str, int]
    again: tuple[frozenset[str], ...] = ()

    def nodes(self, stage: int) -> tuple[Node, ...]:
        """Return the operations of a stage, in running order."""
        return tuple(
            self.program.node[name]
            for name, placed in self.stage_of.items()
            if placed == stage or self.runs_again(name, stage)
        )

    def runs_again(self, name: str, stage: int) -> bool:
        """Whether a stage makes a value of an earlier stage itself."""
        return bool(self.again) and name in self.again[stage]


def place(program: Program, stage_of: Mapping[str, int], count: int) -> Placement:
    """Drop dead operations and give every other one its stage.

    An element of a tuple goes with the call that made the tuple, because tuples do not cross
    a cut.

    Raises
    ------
    AutosplitError
        If a live operation has no stage, or reads a value of a later stage.
    """
    placed: dict[str, int] = {}
    for node in _live(program):
        maker = _tuple_maker(program, node)
        stage = placed[maker] if maker else stage_of.get(node.name)
        if stage is None or not 0 <= stage < count:
            raise AutosplitError(
                f"operation {node.name!r} has no stage among {count}",
                cause="the plan does not name it" if stage is None else f"it names stage {stage}",
                hint="make the plan again from a profile of this model",
            )
        placed[node.name] = stage
    for name, stage in placed.items():
        for source in program.node[name].inputs():
            if placed.get(source, -1) > stage:
                raise AutosplitError(
                    f"operation {name!r} in stage {stage} reads {source!r} of stage "
                    f"{placed[source]}",
                    cause="values go from earlier to later stages alone",
                )
    return Placement(program, count, placed)


def _live(program: Program) -> tuple[Node, ...]:
    """Return the operations whose result or effect somebody sees, in running order."""
    wanted = set(program.outputs)
    live: list[Node] = []
    for node in reversed(program.operations):
        if node.name in wanted or _has_effect(program, node):
            live.append(node)
            wanted.update(node.inputs())
    return tuple(reversed(live))


def _has_effect(program: Program, node: Node) -> bool:
    """Whether a call does more than return a value; a random draw moves the generator on."""
    if node.mutates or node.writes_state or node.random:
        return True
    if node.op != "module":
        return False
    module = program.module[node.target]
    return module.random or module.training_state


def _tuple_maker(program: Program, node: Node) -> str | None:
    if node.target != "operator.getitem" or not node.inputs():
        return None
    maker = program.node[node.inputs()[0]]
    return maker.name if isinstance(maker.value, tuple) else None
