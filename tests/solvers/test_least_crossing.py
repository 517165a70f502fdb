"""Among plans of equal worth the cheapest boundaries: against trying every plan."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autosplit import solvers
from autosplit.solvers import least_crossing as module
from autosplit.solvers.base import ChainProblem, Net, Solution
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.least_crossing import least_crossing, price
from tests.solvers.problems import kind_orders, plans, problems


def least(problem, known, prices):
    """Return the least price over all plans as good as a known one."""
    before = evaluate(problem, known.stage_of, known.kind_of, known.recompute)
    most, worth = max(before.loads_s) + 1e-9, before.objective_s + 1e-9
    found = math.inf
    for stage_of in plans(problem):
        for kinds in kind_orders(problem):
            result = evaluate(problem, stage_of, kinds, known.recompute)
            good = result.objective_s <= worth and max(result.loads_s) <= most
            if good and not result.violations:
                found = min(found, price(problem, stage_of, prices))
    return found


def check(problem, prices):
    known = solvers.solve(problem)
    if known.stage_of is None:
        return
    assert known.status == "optimal"
    found = least_crossing(problem, known, prices, 60.0) or known
    result = evaluate(problem, found.stage_of, found.kind_of, found.recompute)
    assert not result.violations
    assert result.objective_s <= known.objective_s * (1 + 1e-9)
    assert price(problem, found.stage_of, prices) == least(problem, known, prices)


def priced(**options):
    return problems(**options).flatmap(
        lambda problem: st.tuples(
            st.just(problem),
            st.lists(st.integers(0, 9), min_size=len(problem.nets), max_size=len(problem.nets)).map(
                lambda own: own if sum(own) % 2 else [net.volume for net in problem.nets]
            ),
        )
    )


@settings(deadline=None, max_examples=40)
@given(priced(most_nodes=6))
def test_devices_in_order(drawn):
    check(*drawn)


@settings(deadline=None, max_examples=25)
@given(priced(most_nodes=6, per_device=False, memory=False))
def test_transfers_that_overlap(drawn):
    problem, prices = drawn
    check(dataclasses.replace(problem, overlap=True), prices)


@settings(deadline=None, max_examples=40)
@given(priced(most_nodes=6, kinds=True), st.booleans())
def test_devices_of_several_kinds(drawn, overlap):
    problem, prices = drawn
    overlap = overlap and problem.communication == "pass_through"
    check(dataclasses.replace(problem, overlap=overlap), prices)


@settings(deadline=None, max_examples=40)
@given(priced(most_nodes=5, recompute=True))
def test_what_is_recomputed_stays(drawn):
    problem, prices = drawn
    known = solvers.solve(problem)
    found = known.stage_of and least_crossing(problem, known, prices, 60.0)
    if found:
        assert found.recompute == known.recompute
        result = evaluate(problem, found.stage_of, found.kind_of, found.recompute)
        assert not result.violations
        assert result.objective_s <= known.objective_s * (1 + 1e-9)


def chain(count, stages):
    """Return equal nodes in a row, every fourth value small."""
    nets = tuple(Net((i, i + 1), 1.0 if i % 4 == 3 else 100.0) for i in range(count - 1))
    edges = tuple((i, i + 1) for i in range(count - 1))
    # The first node alone is as heavy as ten others.
    return ChainProblem(stages, (10.0, *(1.0,) * (count - 1)), edges, nets)


def known(problem, *firsts):
    stage_of = tuple(sum(node >= first for first in firsts) for node in range(problem.num_nodes))
    objective_s = evaluate(problem, stage_of).objective_s
    return Solution(stage_of, objective_s, objective_s, "optimal", "dp", 0.0)


@pytest.mark.parametrize("nodes", [0, 2000])
def test_graphs_too_large_for_all_downsets_move_along_an_order(monkeypatch, nodes):
    monkeypatch.setattr(module, "_NODES", nodes)
    problem = chain(17, 3)
    found = least_crossing(problem, known(problem, 1, 10), [n.volume for n in problem.nets], 60.0)
    firsts = [found.stage_of.index(stage) for stage in (1, 2)]
    assert firsts == [1, 8]


def test_many_downsets_are_no_reason_to_fail(monkeypatch):
    monkeypatch.setattr(module, "_CUTS", 1)
    problem = chain(17, 3)
    found = least_crossing(problem, known(problem, 1, 10), [n.volume for n in problem.nets], 60.0)
    assert found.stage_of.index(2) == 8


def test_no_time_changes_nothing():
    problem = chain(17, 3)
    prices = [net.volume for net in problem.nets]
    assert least_crossing(problem, known(problem, 1, 10), prices, -1.0) is None
