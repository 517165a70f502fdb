"""The public workloads: proven optimal at the published values."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autosplit.readers import Workload, plan_workload, read

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "workloads" / "dnn_partitioning"
ROW = re.compile(r"^\| (?P<name>\S+) \| \d+ \| (?P<plain>[\d.]+) \| (?P<host>[\d.]+) \|", re.M)


def references() -> list[tuple[str, bool, float]]:
    reference = FOLDER / "REFERENCE.md"
    if not reference.exists():
        return []
    return [
        (row["name"], host, float(row["host" if host else "plain"]) * 1e-3)
        for row in ROW.finditer(reference.read_text())
        for host in (False, True)
    ]


pytestmark = pytest.mark.skipif(not FOLDER.exists(), reason="the public workloads are not here")


@pytest.mark.parametrize(("name", "host_cpu", "optimum"), references())
def test_published_optimum_is_proven(name: str, host_cpu: bool, optimum: float) -> None:
    workload = read(FOLDER / f"{name}.json")
    assert isinstance(workload, Workload)
    plan = plan_workload(workload, host_cpu=host_cpu)
    assert (plan.status, plan.gap) == ("optimal", 0.0)
    assert plan.bottleneck_s == pytest.approx(optimum, rel=1e-6)
    placed = [name for stage in plan.stages for name in stage.layers]
    assert len(placed) == sum(len(names) for names in workload.nodes)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in references()}))
def test_dynamic_program_and_integer_program_agree(name: str) -> None:
    pytest.importorskip("highspy")
    workload = read(FOLDER / f"{name}.json")
    assert isinstance(workload, Workload)
    plan = plan_workload(workload, host_cpu=False, cross_check=True)
    assert any("agree" in note for note in plan.notes)
