"""How well plans predict the peak memory of the stages that are exported from them.

Each model is planned, exported and trained in four processes under GPipe and 1F1B; each process
counts the storages alive with torch's ``MemTracker``, and its peak is compared with the plan.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from autosplit import graph, planner, workflow
from autosplit.profilers import ProfileOptions
from autosplit.types import PlanRequest
from tests.benchmarks.accuracy.subjects import NAMES, reference
from tests.benchmarks.accuracy.tables import show
from tests.functional.processes import torchrun

STAGES = 4
ROWS = 8
RUNS = (("gpipe", 1), ("gpipe", 4), ("gpipe", 8), ("1f1b", 8))
MANY = 4
"""Micro-batches in flight from which on the closer range holds."""

ALLOWED = {"one": (0.85, 1.30), "some": (0.85, 1.30), "many": (0.90, 1.12)}

pytestmark = [pytest.mark.slow, pytest.mark.hf, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Peak:
    """Bytes of one stage under one schedule."""

    schedule: str
    in_flight: int
    planned: int
    measured: int

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.planned / self.measured

    @property
    def kind(self) -> str:
        """Which range holds."""
        return "many" if self.in_flight >= MANY else "some" if self.in_flight > 1 else "one"


def measure(name: str, folder: Path) -> Iterator[Peak]:
    """Yield the peaks of the stages of a model under every schedule."""
    quick = ProfileOptions(device="cpu", min_repetitions=1, max_repetitions=1)
    profile = workflow.profile(reference(name, ROWS), quick)
    requests = [PlanRequest(STAGES, count, schedule=schedule) for schedule, count in RUNS]
    plan = workflow.plan(profile, requests[-1])
    workflow.export(plan, folder)
    worker = Path(__file__).with_name("memory_worker.py")
    torchrun(STAGES, worker, str(folder), json.dumps(RUNS))
    measured = [json.loads((folder / f"memory_{k}.json").read_text()) for k in range(STAGES)]
    task = planner.Task(graph.build(profile), {})
    for index, request in enumerate(requests):
        answer = task.given(request, plan)
        for rank, stage in enumerate(answer.cost.stages):
            flying = answer.model.schedule.in_flight[rank]
            total = stage.memory.total_bytes
            yield Peak(request.schedule, flying, total, measured[rank][index])


@pytest.mark.parametrize("name", NAMES)
def test_plans_predict_the_peak_memory_of_their_stages(name: str, tmp_path: Path) -> None:
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for peak in measure(name, tmp_path / "pipeline"):
        ratios[peak.schedule, peak.kind].append(peak.ratio)
    rows = [
        (name, schedule, kind, f"{min(found):.2f} to {max(found):.2f}", f"{low:.2f} to {high:.2f}")
        for (schedule, kind), found in sorted(ratios.items())
        for low, high in (ALLOWED[kind],)
    ]
    columns = ("model", "schedule", "in flight", "predicted / measured", "allowed")
    show("Peak memory of stages", columns, rows)
    for (_, kind), found in ratios.items():
        low, high = ALLOWED[kind]
        assert min(found) >= low
        assert max(found) <= high
