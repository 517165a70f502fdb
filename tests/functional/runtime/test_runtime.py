"""The runtime on real processes: every trap trained and compared with the eager model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.functional.processes import torchrun
from tests.functional.runtime.scenarios import SCENARIOS

WORKER = Path(__file__).with_name("worker.py")
RUNS = {
    2: ("gpipe/0", "1f1b/1", "interleaved/0", "zero-bubble/1", "dualpipev/0"),
    3: ("1f1b/0", "gpipe/1"),
}
SLOW = {
    2: ("1f1b/0", "gpipe/1", "looped-bfs/1", "zero-bubble/0", "zbv/0", "zbv/1", "dualpipev/1"),
    3: ("gpipe/0", "1f1b/1", "zbv/0"),
    4: ("1f1b/0", "gpipe/0", "1f1b/1"),
}
NAMES = [make.__name__ for make in SCENARIOS]
TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory):
    """Return a function that launches ``world`` processes once for the runs asked for."""
    known: dict[tuple[int, tuple[str, ...]], list[dict[str, dict[str, float]]]] = {}

    def get(world: int, runs: tuple[str, ...]) -> list[dict[str, dict[str, float]]]:
        if (world, runs) not in known:
            folder = tmp_path_factory.mktemp(f"world_{world}")
            torchrun(world, WORKER, str(folder), *runs)
            files = [folder / f"result_{rank}.json" for rank in range(world)]
            known[world, runs] = [json.loads(file.read_text()) for file in files]
        return known[world, runs]

    return get


def check(results, world: int, runs: tuple[str, ...], name: str) -> None:
    for rank in results(world, runs):
        for run in runs:
            for kind, gap in rank[f"{name} {run}"].items():
                # Outputs are those of micro-batches of another size: sums run in another order.
                limit = 1e-5 if kind == "output" else TOLERANCE
                assert gap <= limit, f"{kind} of {name} {run} differs by {gap}"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", sorted(RUNS))
def test_pipeline_equals_the_model(results, world: int, name: str):
    check(results, world, RUNS[world], name)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("world", sorted(SLOW))
def test_pipeline_equals_the_model_at_other_cuts(results, world: int, name: str):
    check(results, world, SLOW[world], name)
