"""Readable names of layers, from the modules whose calls they lie in."""

from __future__ import annotations

from collections.abc import Sequence

from autosplit.layers.work import Work, short_name
from autosplit.program import Node, Program


class Namer:
    """Finds the module, the block and the name of groups of nodes."""

    def __init__(self, program: Program, work: Work) -> None:
        self._program = program
        self._work = work
        self._block_of_path: dict[tuple[int, ...], int | None] = {}

    def module(self, nodes: Sequence[Node]) -> str:
        """Return the deepest module whose calls contain all nodes ("" for the root)."""
        shortest = min((node.calls for node in nodes), key=len)
        depth = 0
        for depth, call in enumerate(shortest):
            if any(node.calls[depth] != call for node in nodes):
                depth -= 1
                break
        for call in reversed(shortest[: depth + 1]):
            fqn = self._program.calls[call].fqn
            if fqn is not None:
                return fqn
        return ""

    def block_call(self, node: Node) -> int | None:
        """Return the call of the outermost numbered list element around a node.

        A ``Sequential`` of containers is a stage of blocks, not a block.
        """
        if node.calls not in self._block_of_path:
            found = (call for call in node.calls if self._is_block(call))
            self._block_of_path[node.calls] = next(found, None)
        return self._block_of_path[node.calls]

    def block(self, nodes: Sequence[Node]) -> str | None:
        """Return the name of the block in which most of the nodes lie, weights deciding."""
        weighty = [node for node in nodes if self._work.is_heavy(node)] or nodes
        found = [self.block_call(node) for node in weighty]
        calls = [call for call in found if call is not None]
        if not calls:
            return None
        return self._program.calls[max(calls, key=lambda call: (calls.count(call), -call))].fqn

    def unique_names(self, groups: Sequence[Sequence[Node]]) -> list[str]:
        """Return a name for each group: its module, numbered from the second group on."""
        used: set[str] = set()
        names: list[str] = []
        for nodes in groups:
            base = self._base_name(nodes)
            name, number = base, 1
            while name in used:
                number += 1
                name = f"{base}#{number}"
            used.add(name)
            names.append(name)
        return names

    def _base_name(self, nodes: Sequence[Node]) -> str:
        weighty = [node for node in nodes if self._work.is_heavy(node)] or nodes
        return self.module(weighty) or short_name(weighty[-1].target)

    def _is_block(self, call: int) -> bool:
        fqn = self._program.calls[call].fqn
        if fqn is None or not fqn.rpartition(".")[2].isdigit():
            return False
        spec = self._program.module.get(fqn)
        if spec is None or spec.class_name != "Sequential":
            return True
        children = [self._program.module[f"{fqn}.{child}"] for child in spec.children]
        return not (children and all(child.children for child in children))
