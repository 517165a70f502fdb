"""Contraction keeps the optimum, and orders keep the edges."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given, settings

from autosplit.solvers.base import ChainProblem, Link, Net
from autosplit.solvers.bounds import best_of_orders, loosest_load
from autosplit.solvers.contract import contract
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.instance import Instance
from autosplit.solvers.orders import topological_orders

from .problems import brute_force, problems

EXAMPLES = settings(max_examples=80, deadline=None)


@EXAMPLES
@given(problems(most_nodes=6))
def test_contraction_with_budgets_keeps_the_optimum(problem: ChainProblem) -> None:
    idle = dataclasses.replace(problem, allow_empty=True)
    small = contract(idle, memory=True)
    assert brute_force(small.problem) == pytest.approx(brute_force(idle), rel=1e-9, abs=1e-12)


@EXAMPLES
@given(problems(most_nodes=6, kinds=True, memory=False))
def test_contraction_keeps_the_optimum_over_device_orders(problem: ChainProblem) -> None:
    idle = dataclasses.replace(problem, allow_empty=True)
    small = contract(idle, memory=False)
    assert brute_force(small.problem) == pytest.approx(brute_force(idle), rel=1e-9, abs=1e-12)


def test_a_light_node_joins_the_neighbour_it_cannot_leave() -> None:
    problem = ChainProblem(
        num_stages=2,
        work_s=(5.0, 1.0, 5.0),
        edges=((0, 1), (1, 2)),
        nets=(Net((0, 1), 9.0), Net((1, 2), 1.0)),
        links=(),
    )
    small = contract(problem, memory=True)
    assert small.group_of == (0, 1, 2), "no link costs anything, so nothing ties them"
    costly = dataclasses.replace(problem, links=(Link(1.0),))
    small = contract(costly, memory=True)
    assert small.group_of == (0, 0, 1)
    assert small.problem.work_s == (6.0, 5.0)
    assert small.lift((0, 1)) == (0, 0, 1)


@EXAMPLES
@given(problems())
def test_orders_follow_edges_and_fixed_nodes(problem: ChainProblem) -> None:
    inst = Instance(problem)
    for order in topological_orders(inst, 8):
        place = {node: index for index, node in enumerate(order)}
        assert sorted(order) == list(range(problem.num_nodes))
        assert all(place[a] < place[b] for a, b in problem.edges)
        for boundary in range(1, problem.num_stages):
            if (inst.earliest <= inst.latest).all():
                inside = [place[v] for v in order if inst.latest[v] < boundary]
                outside = [place[v] for v in order if inst.earliest[v] >= boundary]
                assert max(inside, default=-1) < min(outside, default=math.inf)


@EXAMPLES
@given(problems(step=False))
def test_bounds_enclose_the_optimum(problem: ChainProblem) -> None:
    inst = Instance(problem)
    best = brute_force(problem)
    assert inst.lower_bound() <= best * (1 + 1e-9)
    plan = best_of_orders(inst)
    if plan is not None:
        result = evaluate(problem, plan.stage_of)
        assert not result.violations
        assert result.objective_s == pytest.approx(plan.label)
        assert best <= plan.label * (1 + 1e-9)
        assert plan.label <= loosest_load(inst)
