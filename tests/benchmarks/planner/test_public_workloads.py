"""The published workloads: optima to 1e-6 with a proof, and the seconds that takes."""

from __future__ import annotations

import statistics

import pytest

from autosplit.planner import plan
from autosplit.readers import plan_workload
from autosplit.types import PlanRequest
from tests.benchmarks.planner import inputs

RESULTS = inputs.pipedream_results()

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.skipif(not inputs.WORKLOADS, reason="the public workloads are not here")
def test_published_optima() -> None:
    """Print optimum and seconds of each; the integer program answers where there is no host."""
    print("\n| workload | host CPU | bottleneck, ms | gap | dp, s | highs, s |")
    print("|---|---|---|---|---|---|")
    for name in inputs.WORKLOADS:
        workload = inputs.workload(name)
        for host, optimum in zip((False, True), inputs.published(name), strict=True):
            seconds = {"auto": [], "highs": []}
            for solver in ("auto",) if host else ("auto", "highs"):
                for _ in range(5):
                    found = plan_workload(workload, host_cpu=host, solver=solver)
                    assert (found.status, found.gap) == ("optimal", 0.0)
                    assert found.bottleneck_s == pytest.approx(optimum, rel=1e-6)
                    seconds[solver].append(found.solver_s)
            first, second = (f"{statistics.median(s):.2f}" if s else "" for s in seconds.values())
            print(
                f"| {name} | {'yes' if host else 'no'} | {found.bottleneck_s * 1e3:.6f} "
                f"| {found.gap:.0f} | {first} | {second} |"
            )


@pytest.mark.skipif(not RESULTS, reason="PipeDream's profiles are not here")
def test_no_worse_than_pipedream() -> None:
    """At 1 GB/s with transfers beside compute, as PipeDream plans.

    Its figures leave out values that skip over a boundary; ours count them and are no larger.
    """
    print("\n| profile | stages | PipeDream, ms | autosplit, ms | proven | s |")
    print("|---|---|---|---|---|---|")
    for name, results in RESULTS.items():
        for stages, own in zip((4, 8), results, strict=True):
            request = PlanRequest(
                stages, 4 * stages, link_bytes_per_s=1e9, overlap=True, objective="bottleneck"
            )
            found = plan(inputs.pipedream(name), request)
            assert found.gap == 0
            assert found.bottleneck_s <= own * (1 + 1e-5)
            print(
                f"| {name} | {stages} | {own * 1e3:.3f} | {found.bottleneck_s * 1e3:.3f} "
                f"| {found.status} | {found.solver_s:.2f} |"
            )
