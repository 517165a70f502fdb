"""Among plans of equal worth, the one a person would choose.

Many cuts cost the same: then the one over which fewer bytes cross is better, and after that the
one between modules rather than inside of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autosplit.graph import Graph
from autosplit.solvers.base import ChainProblem, Net, Solution
from autosplit.solvers.least_crossing import least_crossing


def tasteful(
    problem: ChainProblem,
    known: Solution,
    graph: Graph,
    groups: Sequence[Sequence[int]],
    time_limit_s: float,
) -> Solution | None:
    """Return a plan of equal worth with better cuts, or None where none is found.

    Parameters
    ----------
    problem, known
        The problem and the best plan for it.
    graph, groups
        What its nodes stand for.
    time_limit_s
        Seconds after which the search gives up.
    """
    if problem.num_stages == 1:
        return None
    modules = tuple(Net(pins, volume=0.0, messages=0) for pins in _modules(graph, groups))
    # Bytes are whole numbers: one of them outweighs all modules that may be divided.
    per_byte = 1.0 + len(modules) * (problem.num_stages - 1)
    prices = [*(net.volume * per_byte for net in problem.nets), *(1.0 for _ in modules)]
    with_modules = replace(problem, nets=problem.nets + modules)
    return least_crossing(with_modules, known, prices, time_limit_s)


def _modules(graph: Graph, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the nodes of every block and every module of several layers, ascending."""
    members: dict[str, set[int]] = {}
    for number, group in enumerate(groups):
        for index in group:
            layer = graph.layers[index]
            for path in {layer.block, layer.module} - {None, ""}:
                members.setdefault(str(path), set()).add(number)
    found = {tuple(sorted(nodes)) for nodes in members.values() if len(nodes) > 1}
    return sorted(found)
