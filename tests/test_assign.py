"""Why a plan is not proven is told as it is."""

import dataclasses

import pytest

from autosplit import solvers
from autosplit.planner import plan
from autosplit.report.plans import plan_tables, proof
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile
from tests.report.test_snapshots import text

SUBJECT = random_profile(3, 10)
ASK = PlanRequest(3, 6, link_bytes_per_s=20.0)


def answering(monkeypatch, **changes):
    """Let the solvers find what they find, but prove less."""
    true_solve = solvers.solve

    def solve(*args, **options):
        found = true_solve(*args, **options)
        return dataclasses.replace(found, bound_s=0.5 * found.objective_s, **changes)

    monkeypatch.setattr(solvers, "solve", solve)


def test_a_proof_has_no_reason():
    found = plan(SUBJECT, ASK)
    assert (found.status, found.stopped) == ("optimal", None)
    assert "proven optimal by" in proof(found).plain


def test_the_gap_that_was_asked_for(monkeypatch):
    answering(monkeypatch, status="feasible")
    found = plan(SUBJECT, dataclasses.replace(ASK, gap=0.6))
    assert (found.status, found.stopped) == ("feasible", "gap")
    assert "the gap that was asked for was reached" in proof(found).plain


def test_a_solver_that_stops_by_itself_is_not_said_to_have_lacked_time(monkeypatch):
    answering(monkeypatch, status="feasible")
    found = plan(SUBJECT, ASK)
    assert (found.stopped, found.gap) == ("size", pytest.approx(0.5))
    assert "time limit" not in proof(found).plain


def test_the_time_limit(monkeypatch):
    answering(monkeypatch, status="feasible")
    found = plan(SUBJECT, dataclasses.replace(ASK, time_limit_s=1e-6))
    assert found.stopped == "time"
    assert "the time limit was reached" in proof(found).plain


def test_several_stages_on_a_device():
    request = dataclasses.replace(ASK, stages=4, ranks=2, schedule="interleaved")
    found = plan(SUBJECT, request)
    assert found.stopped == "chunks"
    assert "several stages on a device" in proof(found).plain


def test_a_single_stage_has_no_schedule():
    shown = text(80, *plan_tables(plan(profile([1.0, 2.0]), PlanRequest(1, 2))))
    assert "1 stage\n" in shown
    assert "1f1b" not in shown


def test_devices_with_several_stages_show_their_memory():
    subject = profile([1.0] * 4, param_bytes=[1024] * 4)
    request = PlanRequest(4, 4, schedule="interleaved", ranks=2, optimizer="sgd")
    shown = text(80, *plan_tables(plan(subject, request)))
    assert "Devices, each with several stages" in shown
    assert "4.02 KiB" in shown
