"""How the seconds to a proof grow with the graph. Asserts proofs and no times."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autosplit.planner import plan
from autosplit.serialize import dump
from autosplit.solvers import solve
from autosplit.types import PlanRequest
from tests.benchmarks.planner import inputs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("nodes", [1000, 10_000])
@pytest.mark.parametrize("stages", [8, 16, 64])
def test_solver(nodes: int, stages: int) -> None:
    problem = inputs.transformer(nodes).problem(stages)
    answer = solve(problem)
    assert (answer.status, answer.gap) == ("optimal", 0.0)
    print(f"\n{nodes:6} nodes, {stages:2} stages: {answer.solver} {answer.solver_s:6.2f} s")


@pytest.mark.parametrize(("layers", "stages"), [(1000, 8), (10_000, 8), (10_000, 64)])
def test_whole_plan(layers: int, stages: int) -> None:
    """From a profile in memory to a plan: graph, problem, proof, ties and simulation."""
    measured = inputs.transformer(layers).profile()
    start = time.perf_counter()
    found = plan(measured, PlanRequest(stages, 2 * stages, link_bytes_per_s=1e9))
    seconds = time.perf_counter() - start
    print(f"\n{layers:6} layers, {stages:2} stages: {found.status}, {seconds:6.2f} s in all")


def test_command(tmp_path: Path) -> None:
    """A process that reads 300 layers, proves a plan and prints it, without torch."""
    path = tmp_path / "profile.json"
    dump(inputs.transformer(300).profile(), path)
    command = [sys.executable, "-X", "importtime", "-m", "autosplit", "plan", str(path)]
    command += ["--stages", "4", "--json", "-o", str(tmp_path / "plan.json")]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seconds = time.perf_counter() - start
    assert not any(line.split("|")[-1].strip() == "torch" for line in done.stderr.splitlines())
    found = json.loads(done.stdout)
    print(f"\n300 layers, 4 stages: {found['status']}, {seconds:.2f} s for the whole command")
