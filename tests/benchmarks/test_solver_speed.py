"""How long proofs take: seconds of processor time, since machines are shared. Asserts no times."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from autosplit.readers import Workload, plan_workload, read
from autosplit.solvers import solve
from autosplit.solvers.base import ChainProblem, Link, Net

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "workloads" / "dnn_partitioning"
WORKLOADS = sorted(path.stem for path in FOLDER.glob("*.json"))
T = TypeVar("T")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def timed(action: Callable[[], T], repeats: int) -> tuple[T, float]:
    """Return the result and the median seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        result = action()
        seconds.append(time.process_time() - start)
    return result, statistics.median(seconds)


def transformer(nodes: int, stages: int, seed: int = 0) -> ChainProblem:
    """Return a graph of blocks of ten operators: residuals, fan-out to queries, keys, values."""
    rng = random.Random(seed)
    work: list[float] = []
    readers: dict[int, list[int]] = {}

    def add(seconds: float, *inputs: int) -> int:
        for node in inputs:
            readers.setdefault(node, []).append(len(work))
        work.append(seconds)
        return len(work) - 1

    def heavy(scale: float = 1.0) -> float:
        return scale * rng.uniform(0.8, 1.2)

    last = add(1.0)
    while len(work) < nodes:
        norm = add(rng.uniform(0.05, 0.1), last)
        query, key, value = (add(heavy(), norm) for _ in range(3))
        scores = add(heavy(0.4), query, key)
        mixed = add(heavy(0.4), scores, value)
        out = add(heavy(), mixed)
        residual = add(0.02, last, out)
        up = add(heavy(2.0), residual)
        last = add(heavy(2.0), up, residual)
    return ChainProblem(
        num_stages=stages,
        work_s=tuple(work),
        edges=tuple(sorted((a, b) for a, after in readers.items() for b in after)),
        nets=tuple(Net((node, *after), rng.uniform(0.02, 0.05)) for node, after in readers.items()),
        links=(Link(1.0),) * (stages - 1),
    )


@pytest.mark.skipif(not WORKLOADS, reason="the public workloads are not here")
def test_public_workloads() -> None:
    print(f"\n{'workload':32} {'host':5} {'solver':6} {'bottleneck s':>13} {'CPU s':>7}")
    for name in WORKLOADS:
        workload = read(FOLDER / f"{name}.json")
        assert isinstance(workload, Workload)
        for host, solver in ((False, "dp"), (False, "ilp"), (True, "dp")):
            plan, seconds = timed(
                lambda w=workload, h=host, s=solver: plan_workload(w, host_cpu=h, solver=s), 5
            )
            assert plan.gap == 0
            print(f"{name:32} {host!s:5} {plan.solver:6} {plan.bottleneck_s:13.9f} {seconds:7.2f}")


@pytest.mark.parametrize("nodes", [1000, 10_000])
@pytest.mark.parametrize("stages", [8, 16, 64])
def test_growth(nodes: int, stages: int) -> None:
    problem = transformer(nodes, stages)
    answer, seconds = timed(lambda: solve(problem), 1)
    assert (answer.status, answer.gap) == ("optimal", 0.0)
    print(f"\n{nodes:6} nodes, {stages:2} stages: {answer.solver} {seconds:6.2f} CPU s")
