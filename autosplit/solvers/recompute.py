"""Which nodes to recompute in backward, once the stages are known.

Every stage that needs more memory than its device has must shed bytes at the least price in
seconds: a knapsack. Taking nodes by price per byte and giving back those that turn out not to be
needed is nearly always best; the ILP, which decides stages and recomputation together, proves it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from autosplit.solvers.base import ChainProblem
from autosplit.solvers.evaluate import TOLERANCE, evaluate


def cheapest_recomputation(
    problem: ChainProblem, stage_of: Sequence[int], kind_of: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return nodes whose recomputation makes every stage fit, where any choice does."""
    if not problem.recompute_bytes:
        return ()
    memory = evaluate(problem, stage_of, kind_of).memory_bytes
    chosen: list[int] = []
    for stage in range(problem.num_stages):
        budget = _budget(problem, stage, kind_of) * (1 + TOLERANCE / 2)
        flight = problem.in_flight[stage] if problem.in_flight else 1
        if memory[stage] > budget and flight:
            held = [node for node, place in enumerate(stage_of) if place == stage]
            chosen += _cover(problem, held, (memory[stage] - budget) / flight)
    return tuple(sorted(chosen))


def recompute_all(problem: ChainProblem) -> ChainProblem:
    """Return the problem in which every node that can be is recomputed."""
    kinds = tuple(
        dataclasses.replace(
            kind,
            work_s=tuple(
                work + again / kind.speed
                for work, again in zip(kind.work_s, problem.recompute_s, strict=True)
            ),
        )
        if kind.work_s
        else kind
        for kind in problem.kinds
    )
    work = zip(problem.work_s, problem.recompute_s, strict=True)
    saved = zip(problem.saved_bytes, problem.recompute_bytes, strict=True)
    return dataclasses.replace(
        problem,
        work_s=tuple(seconds + again for seconds, again in work),
        saved_bytes=tuple(max(0.0, held - spared) for held, spared in saved),
        kinds=kinds,
        recompute_s=(),
        recompute_bytes=(),
    )


def _budget(problem: ChainProblem, stage: int, kind_of: Sequence[int]) -> float:
    if problem.kinds:
        return problem.kinds[kind_of[stage]].budget_bytes
    return problem.budget_bytes[stage] if problem.budget_bytes else float("inf")


def _cover(problem: ChainProblem, nodes: list[int], need: float) -> list[int]:
    """Return nodes that spare ``need`` bytes, cheapest seconds per byte first."""
    spared, price = problem.recompute_bytes, problem.recompute_s
    useful = sorted(
        (node for node in nodes if spared[node] > 0),
        key=lambda node: (price[node] / spared[node], node),
    )
    chosen: list[int] = []
    total = 0.0
    for node in useful:
        if total >= need:
            break
        chosen.append(node)
        total += spared[node]
    for node in sorted(chosen, key=lambda each: (-price[each], each)):
        if total - spared[node] >= need:
            chosen.remove(node)
            total -= spared[node]
    return chosen
