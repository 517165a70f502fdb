"""Among plans of equal worth, the one a person would choose.

Many cuts cost the same: then the one over which fewer bytes cross is better, and after that the
one between modules rather than inside of one. A second problem says so with prices too small to
change which plans are best.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from autosplit.graph import Graph
from autosplit.solvers.base import ChainProblem, Link, Net

PRICES = (1e-4, 1e-7)
"""Shares of the objective that a typical value costs over all boundaries, where links are free.

The first is well above the tolerances of solvers; where it is too high to leave the best plans
the best, the second may do.
"""

_MODULE = 0.1
"""Price of dividing a module, against that of a typical value."""

_BOTTLENECK_FIRST = 100
"""Micro-batches with which the sum of loads counts little beside the bottleneck."""


def with_taste(
    problem: ChainProblem,
    graph: Graph,
    groups: Sequence[Sequence[int]],
    objective_s: float,
    price: float,
) -> ChainProblem | None:
    """Return the problem with small prices for bytes and for divided modules.

    Parameters
    ----------
    problem
        The problem as it was solved.
    graph, groups
        What its nodes stand for.
    objective_s
        Its best objective.
    price
        One of ``PRICES``.

    Returns
    -------
    ChainProblem or None
        None where prices would not add up: devices in free order, overlapped transfers, one
        stage, times of zero.
    """
    unpriced = problem.kinds or problem.overlap or problem.num_stages == 1 or not objective_s
    volumes = [net.volume for net in problem.nets if net.volume]
    if unpriced or not volumes:
        return None
    slowest = max((link.s_per_byte for link in problem.links), default=0.0)
    per_boundary = objective_s / problem.num_stages
    if problem.objective == "step":
        # A load counts M times where it is the largest.
        per_boundary /= problem.microbatches
    links = problem.links
    if not slowest:
        slowest = price * per_boundary / statistics.median(volumes)
        links = tuple(Link(slowest, link.latency_s) for link in links)
    volume = _MODULE * price * per_boundary / slowest
    modules = tuple(Net(pins=pins, volume=volume) for pins in _modules(graph, groups))
    lexicographic = problem.objective == "bottleneck"
    return replace(
        problem,
        links=links,
        nets=problem.nets + modules,
        objective="step",
        microbatches=_BOTTLENECK_FIRST if lexicographic else problem.microbatches,
    )


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
