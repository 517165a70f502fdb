"""Which modules of a stage are computed again in backward, for the layers that a plan names.

A plan recomputes layers, and a stage can compute a module call again: what goes into it is kept,
and what its backward needs is made anew. So that no stage keeps more than planned from forward to
backward, the largest modules are taken that the plan recomputes as a whole, and around operations
left over the module that they are half of or more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

from autosplit.layers.operators import kept_by, kind_of
from autosplit.program import Node, Program, TensorSpec

_LITTLE = (
    *("nothing", "input", "output", "factors", "divisor", "indices", "statistics"),
    *("places", "mask"),
)
"""What is there anyway, or no more than what goes in, when one operation is computed again."""


def modules_to_recompute(
    program: Program, stage: Collection[str], again: Collection[str]
) -> tuple[str, ...]:
    """Return names of modules, none inside another, in the order in which they run.

    Parameters
    ----------
    program
        A traced model.
    stage
        Operations of the stage.
    again
        Those of them that the plan computes again.
    """
    return _Calls(program, frozenset(stage), frozenset(again)).chosen() if again else ()


class _Calls:
    """The calls of modules in one stage, and which of them may be computed again."""

    def __init__(self, program: Program, stage: frozenset[str], again: frozenset[str]) -> None:
        self.program = program
        self.stage = stage
        self.again = again
        self.nodes: dict[str, list[Node]] = defaultdict(list)  # of all calls of a module
        self.around: dict[str, list[str]] = {}  # modules around a node, outermost first
        for node in program.operations:
            names = [program.calls[index].fqn for index in node.calls]
            self.around[node.name] = [name for name in names if name]
            for name in dict.fromkeys(self.around[node.name]):
                self.nodes[name].append(node)
        self.written: dict[int, int] = {}  # storage -> position of the last write to it
        for node in program.nodes:
            for source in node.mutates:
                for spec in program.node[source].tensors:
                    self.written[spec.storage] = program.position[node.name]

    def chosen(self) -> tuple[str, ...]:
        """Return the modules."""
        found: dict[str, None] = {}
        for node in self.program.operations:
            if node.name in self.again and (name := self._around(node)):
                found[name] = None
        return tuple(
            name for name in found if not any(name.startswith(f"{other}.") for other in found)
        )

    def _around(self, node: Node) -> str | None:
        """Return the module to compute again for the sake of one operation."""
        modules = self.around[node.name]
        outermost = next((name for name in modules if self._wholly(name)), None)
        if outermost is not None or not self._keeps(node):
            return outermost
        return next((name for name in reversed(modules) if self._mostly(name)), None)

    def _wholly(self, name: str) -> bool:
        nodes = self.nodes[name]
        worth = len(nodes) > 1 or kept_by(kind_of(self.program, nodes[0])) not in _LITTLE
        return worth and all(node.name in self.again for node in nodes) and self._may(name)

    def _mostly(self, name: str) -> bool:
        nodes = self.nodes[name]
        keeping = [node.name in self.again for node in nodes if self._keeps(node)]
        inside = all(node.name in self.stage for node in nodes)
        return inside and 2 * sum(keeping) >= len(keeping) and len(nodes) > 1 and self._may(name)

    def _keeps(self, node: Node) -> bool:
        needed = any(spec.requires_grad for spec in node.tensors)
        return needed and kept_by(kind_of(self.program, node)) != "nothing"

    def _may(self, name: str) -> bool:
        """Whether a second time gives the same: nothing it reads has been written to by then."""
        nodes = self.nodes[name]
        first = self.program.position[nodes[0].name]
        return not any(self._writes_state(node) for node in nodes) and not any(
            self.written.get(spec.storage, -1) >= first for spec in self._taken(nodes)
        )

    def _taken(self, nodes: list[Node]) -> Iterator[TensorSpec]:
        inside = {node.name for node in nodes}
        for node in nodes:
            for source in node.inputs():
                if source not in inside and self.program.node[source].op != "state":
                    yield from self.program.node[source].tensors

    def _writes_state(self, node: Node) -> bool:
        """Whether a node writes to buffers; those of BatchNorm are put back by the runtime."""
        return bool(node.writes_state) and not kind_of(self.program, node).endswith("batchnorm")
