"""Everything that a plan takes comes out of one time limit, by a clock that the tests turn."""

import dataclasses
import time

import pytest

from autosplit import solvers
from autosplit.deadline import Deadline
from autosplit.errors import AutosplitError, InfeasibleError
from autosplit.planner import plan
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile

SUBJECT = random_profile(5, 24)
ASK = PlanRequest(4, 8, link_bytes_per_s=20.0, time_limit_s=10.0)
# Little memory and much to keep: sent and input buffers take part, so that repairs are needed.
KEEPING = profile([1.0, 2.0, 1.5, 1.0, 2.5, 1.0, 2.0, 1.0], saved_bytes=[100] * 8)


class Clock:
    """Time as the test says; each look at it may take a while."""

    def __init__(self, step_s=0.0):
        self.now, self.step_s = 1000.0, step_s

    def __call__(self):
        self.now += self.step_s
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(time, "monotonic", found)
    return found


class Slow:
    """Solvers that use all the time they get, and answer without a proof or not at all."""

    def __init__(self, clock, monkeypatch, **changes):
        self.clock, self.changes, self.given_s = clock, changes, []
        self.true_solve = solvers.solve
        monkeypatch.setattr(solvers, "solve", self)

    def __call__(self, problem, solver="auto", time_limit_s=60.0, *args, **options):
        self.given_s.append(time_limit_s)
        found = self.true_solve(problem)
        self.clock.now += time_limit_s
        if found.stage_of is None:
            return found
        changes = {"status": "feasible", "bound_s": 0.5 * found.objective_s, **self.changes}
        return dataclasses.replace(found, **changes)


NOTHING = {"stage_of": None, "objective_s": float("inf"), "status": "unknown"}


def test_parts_of_the_time_end_within_it(clock):
    end = Deadline.after(8.0)
    assert end.left_s == 8.0
    assert end.within(3.0) == Deadline.after(3.0)
    assert end.within(30.0) == end
    assert end.share(0.25) == Deadline.after(2.0)
    assert end.keeping(1.0) == Deadline.after(7.0)
    assert end.keeping(100.0) == Deadline.after(6.0)
    clock.now += 8.0
    assert end.passed
    assert end.left_s == 0.0
    assert end.keeping(1.0) == end


@pytest.mark.parametrize("recompute", ["none", "auto", "all"])
def test_solvers_share_one_limit(clock, monkeypatch, recompute):
    slow = Slow(clock, monkeypatch)
    request = dataclasses.replace(ASK, memory_bytes=1300, recompute=recompute, optimizer="sgd")
    started = clock.now
    found = plan(KEEPING, request)
    assert found.status == "feasible"
    assert 0 < found.bound_s <= found.objective_s
    assert clock.now - started <= request.time_limit_s * (1 + 1e-9)
    assert sum(slow.given_s) <= request.time_limit_s * (1 + 1e-9)


def test_the_price_of_blocks_is_left_out_when_the_time_is_over(clock, monkeypatch):
    slow = Slow(clock, monkeypatch)
    request = dataclasses.replace(ASK, granularity="block")
    assert "was not found out in time" in " ".join(plan(SUBJECT, request).notes)
    assert len(slow.given_s) == 1


def test_nothing_found_in_time_is_said(clock, monkeypatch):
    slow = Slow(clock, monkeypatch, **NOTHING)
    with pytest.raises(AutosplitError, match="no 4-stage plan was found in 10 s") as caught:
        plan(SUBJECT, ASK)
    assert caught.value.hint == "raise --time-limit"
    assert len(slow.given_s) == 1
    started = clock.now
    with pytest.raises(InfeasibleError, match="none was found, without a proof") as caught:
        plan(KEEPING, dataclasses.replace(ASK, memory_bytes=1300))
    assert caught.value.hint == "give larger devices"
    assert clock.now - started <= ASK.time_limit_s


def test_changes_that_would_fit_take_what_is_left(clock, monkeypatch):
    request = dataclasses.replace(ASK, memory_bytes=400, time_limit_s=2.0)
    Slow(clock, monkeypatch)
    clock.step_s = 1e-9
    started = clock.now
    with pytest.raises(InfeasibleError) as caught:
        plan(KEEPING, request)
    assert "would fit" in caught.value.hint
    assert "not all was tried: the time was over" in caught.value.hint
    assert clock.now - started <= request.time_limit_s * (1 + 1e-6)


@pytest.mark.parametrize("recompute", ["none", "auto"])
def test_a_proven_plan_does_not_depend_on_the_clock(monkeypatch, recompute):
    request = dataclasses.replace(ASK, time_limit_s=1e6, memory_bytes=1300, recompute=recompute)
    found = []
    for step_s in (0.0, 0.1, 7.0):
        monkeypatch.setattr(time, "monotonic", Clock(step_s))
        each = plan(KEEPING, request)
        found.append(dataclasses.replace(each, solver_s=0.0))
    assert found[0] == found[1] == found[2]


def test_a_plan_is_found_however_short_the_time(monkeypatch):
    monkeypatch.setattr(time, "monotonic", Clock(step_s=1.0))
    for changes in ({}, {"recompute": "auto", "memory_bytes": 10**6}):
        found = plan(SUBJECT, dataclasses.replace(ASK, time_limit_s=1.0, **changes))
        assert 0 < found.bound_s <= found.objective_s
