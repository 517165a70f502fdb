"""Mixed devices and memory that binds, on the public workloads. Asserts answers and no times."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autosplit.solvers import solve
from autosplit.solvers.base import ChainProblem, DeviceKind, Solution
from autosplit.solvers.evaluate import evaluate
from tests.benchmarks.planner import inputs

LIMIT_S = 5.0

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not inputs.WORKLOADS, reason="the public workloads are not here"),
]


def in_order(problem: ChainProblem, kinds: list[DeviceKind]) -> ChainProblem:
    """Return the problem with its devices in a given order."""
    devices = [kind for kind in kinds for _ in range(kind.count)]
    return replace(
        problem,
        kinds=(),
        speeds=tuple(device.speed for device in devices),
        budget_bytes=tuple(device.budget_bytes for device in devices),
    )


def largest_memory(problem: ChainProblem, answer: Solution) -> float:
    """Return the memory of the fullest stage of an answer."""
    assert answer.stage_of is not None
    return max(evaluate(problem, answer.stage_of, answer.kind_of).memory_bytes)


def against(order: Solution, best: Solution) -> str:
    """Return how much worse a fixed order is."""
    if order.stage_of is None:
        return "no plan"
    return f"{order.objective_s / best.objective_s - 1:+.1%}"


def test_mixed_devices() -> None:
    """The order of the devices is part of the answer: no fixed order is better."""
    print("\n| workload | devices | memory | bottleneck | gap | s | fast first | memory first |")
    print("|---|---|---|---|---|---|---|---|")
    for name in inputs.WORKLOADS:
        for mix in inputs.MIXES:
            free = inputs.pipelined(inputs.workload(name).problem, mix.kinds(math.inf))
            unlimited = solve(free, time_limit_s=LIMIT_S)
            budget = largest_memory(free, unlimited)
            for problem in (free, replace(free, kinds=mix.kinds(budget))):
                answer = solve(problem, time_limit_s=LIMIT_S)
                kinds = list(problem.kinds)
                fast = sorted(kinds, key=lambda kind: -kind.speed)
                large = sorted(kinds, key=lambda kind: -kind.budget_bytes)
                orders = [
                    solve(in_order(problem, order), time_limit_s=LIMIT_S) for order in (fast, large)
                ]
                assert all(answer.objective_s <= each.objective_s * (1 + 1e-9) for each in orders)
                binds = "binds" if problem is not free else "free"
                print(
                    f"| {name} | {mix.name} | {binds} | {answer.objective_s * 1e3:.3f} "
                    f"| {answer.gap:.2%} | {answer.solver_s:.2f} "
                    f"| {against(orders[0], answer)} | {against(orders[1], answer)} |"
                )


def test_memory_that_binds() -> None:
    """A budget at 0.9 of the free optimum's fullest stage: an optimum, or a proof of none."""
    print("\n| workload | free, ms | at 0.9 of its memory, ms | status | solver | s |")
    print("|---|---|---|---|---|---|")
    for name in inputs.WORKLOADS:
        given = inputs.workload(name).problem
        kinds = (DeviceKind(given.num_stages),)
        free = in_order(inputs.pipelined(given, kinds), list(kinds))
        best = solve(free)
        budget = 0.9 * largest_memory(free, best)
        answer = solve(replace(free, budget_bytes=(budget,) * free.num_stages))
        assert answer.status in ("optimal", "infeasible")
        print(
            f"| {name} | {best.objective_s * 1e3:.3f} | {answer.objective_s * 1e3:.3f} "
            f"| {answer.status} | {answer.solver} | {answer.solver_s:.2f} |"
        )
