"""Loads and memory of plans, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net, Shared
from autosplit.solvers.evaluate import evaluate

# 0 -> 1 -> 2 -> 3, and a value of 0 that 3 reads too.
SKIP = ChainProblem(
    num_stages=3,
    work_s=(2.0, 4.0, 6.0, 8.0),
    edges=((0, 1), (1, 2), (2, 3), (0, 3)),
    nets=(Net((0, 1, 3), 10.0, 2, returned=4.0), Net((1, 2), 20.0), Net((2, 3), 30.0)),
    links=(Link(0.1, 0.5), Link(0.1)),
)
PLAN = (0, 1, 1, 2)


def test_pass_through_pays_what_crosses_each_boundary_once() -> None:
    result = evaluate(SKIP, PLAN)
    assert result.boundaries_s == pytest.approx((2.0, 4.0))
    assert result.loads_s == pytest.approx((4.0, 16.0, 12.0))
    assert result.objective_s == pytest.approx(16.0)
    assert result.violations == ()


def test_overlap_takes_the_longest() -> None:
    result = evaluate(replace(SKIP, overlap=True), (0, 0, 1, 2))
    assert result.boundaries_s == pytest.approx((4.5, 4.0))
    assert result.loads_s == pytest.approx((6.0, 6.0, 8.0))


def test_step_repeats_the_busiest_stage() -> None:
    result = evaluate(replace(SKIP, objective="step", microbatches=4), PLAN)
    assert result.objective_s == pytest.approx(3 * 16 + 32)


def test_per_device_pays_at_every_device_a_net_touches() -> None:
    problem = replace(SKIP, communication="per_device", links=(Link(0.1), Link(0.1)))
    result = evaluate(problem, PLAN)
    assert result.loads_s == pytest.approx((2 + 1, 10 + 1 + 3, 8 + 1 + 3))


def test_speed_entry_and_own_times() -> None:
    result = evaluate(replace(SKIP, nets=(), speeds=(1.0, 2.0, 4.0), entry_s=4.0), PLAN)
    assert result.loads_s == pytest.approx((6.0, 7.0, 3.0))
    kinds = (DeviceKind(2, speed=2.0), DeviceKind(1, work_s=(1.0, 1.0, 1.0, 1.0)))
    result = evaluate(replace(SKIP, nets=(), kinds=kinds, links=()), PLAN, (0, 1, 0))
    assert result.loads_s == pytest.approx((1.0, 2.0, 4.0))


def test_links_between_kinds() -> None:
    kinds = (DeviceKind(2), DeviceKind(1))
    fast, slow = Link(0.1), Link(1.0)
    links = ((fast, slow), (slow, fast))
    problem = replace(SKIP, kinds=kinds, kind_links=links, links=())
    assert evaluate(problem, PLAN, (0, 0, 1)).boundaries_s == pytest.approx((1.0, 40.0))


def test_returned_values_go_on_to_the_last_stage() -> None:
    problem = replace(SKIP, nets=(Net((0,), 10.0, to_end=True),), links=(Link(0.1), Link(0.2)))
    assert evaluate(problem, PLAN).boundaries_s == pytest.approx((1.0, 2.0))
    assert evaluate(problem, (2, 2, 2, 2)).boundaries_s == (0.0, 0.0)


def test_memory_counts_shared_once_and_what_arrives() -> None:
    problem = replace(
        SKIP,
        static_bytes=(1.0, 2.0, 3.0, 4.0),
        saved_bytes=(1.0, 1.0, 2.0, 1.0),
        workspace_bytes=(5.0, 7.0, 6.0, 0.0),
        shared=(Shared((1, 2, 3), 100.0),),
        in_flight=(3, 2, 1),
        boundary_factor=(1.0, 1.0, 1.0),
    )
    result = evaluate(problem, PLAN)
    # Stage 1 receives 6 of the first net before it, and 4 gradients of it after it.
    assert result.memory_bytes == pytest.approx(
        (1 + 3 + 5 + 4, 5 + 6 + 7 + 100 + 6 + 4, 4 + 1 + 0 + 100 + 6 + 30)
    )


def test_recomputation_costs_time_and_spares_saved_bytes() -> None:
    problem = replace(
        SKIP,
        nets=(),
        saved_bytes=(4.0, 4.0, 4.0, 4.0),
        recompute_s=(1.0, 1.0, 1.0, 1.0),
        recompute_bytes=(3.0, 3.0, 3.0, 3.0),
        in_flight=(3, 2, 1),
    )
    result = evaluate(problem, PLAN, (), (1,))
    assert result.loads_s == pytest.approx((2.0, 11.0, 8.0))
    assert result.memory_bytes == pytest.approx((12.0, 10.0, 4.0))


@pytest.mark.parametrize(
    ("problem", "stage_of", "message"),
    [
        (SKIP, (1, 0, 1, 2), "points backwards"),
        (SKIP, (0, 0, 0, 0), "stage 1 is empty"),
        (replace(SKIP, fixed=((3, 1),)), PLAN, "node 3 is not in stage 1"),
        (
            replace(SKIP, static_bytes=(9.0,) * 4, budget_bytes=(9.0, 9.0, 9.0)),
            PLAN,
            "stage 1 needs 18 bytes",
        ),
    ],
)
def test_broken_rules_are_told(
    problem: ChainProblem, stage_of: tuple[int, ...], message: str
) -> None:
    assert any(message in text for text in evaluate(problem, stage_of).violations)


def test_a_device_that_cannot_run_a_node_is_told() -> None:
    kinds = (DeviceKind(2), DeviceKind(1, excluded=(3,)))
    problem = replace(SKIP, kinds=kinds, links=())
    assert "cannot run" in evaluate(problem, PLAN, (0, 0, 1)).violations[0]
    assert "kinds" in evaluate(problem, PLAN, (0, 0, 0)).violations[0]
