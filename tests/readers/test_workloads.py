"""The public workloads: proven optimal at the published values."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from autosplit.readers import Workload, WorkloadPlan, plan_workload, read

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


def loads_from_file(path: Path, plan: WorkloadPlan) -> list[float]:
    """Return the load of each stage in milliseconds from the raw file; check its rules."""
    data = json.loads(path.read_text())
    nodes = {node["id"]: node for node in data["nodes"]}
    named = Counter(node["name"] for node in nodes.values())
    assert named == Counter(name for stage in plan.stages for name in stage.layers)
    place = {
        node["id"]: next(i for i, s in enumerate(plan.stages) if node["name"] in s.layers)
        for node in nodes.values()
    }
    classes: dict[object, set[int]] = {}
    loads = [0.0] * len(plan.stages)
    sizes = [0.0] * len(plan.stages)
    host = [stage.device.startswith("cpu") for stage in plan.stages]
    for key, node in nodes.items():
        loads[place[key]] += node["cpuLatency" if host[place[key]] else "fpgaLatency"]
        sizes[place[key]] += node["size"]
        if "colorClass" in node:
            classes.setdefault(node["colorClass"], set()).add(place[key])
    assert all(len(places) == 1 for places in classes.values())
    paid = set()
    for edge in data["edges"]:
        source, target = edge["sourceId"], edge["destId"]
        if not nodes[source]["isBackwardNode"] and not nodes[target]["isBackwardNode"]:
            assert place[source] <= place[target]
        if place[source] != place[target]:
            paid |= {(source, place[source], edge["cost"]), (source, place[target], edge["cost"])}
    for _, stage, cost in paid:
        loads[stage] += 0 if host[stage] else cost
    cap = data["maxSizePerFPGA"]
    assert all(size <= cap for size, cpu in zip(sizes, host, strict=True) if not cpu)
    return loads


@pytest.mark.parametrize(("name", "host_cpu", "optimum"), references())
def test_published_optimum_is_proven(name: str, host_cpu: bool, optimum: float) -> None:
    workload = read(FOLDER / f"{name}.json")
    assert isinstance(workload, Workload)
    plan = plan_workload(workload, host_cpu=host_cpu)
    assert (plan.status, plan.gap) == ("optimal", 0.0)
    assert plan.bottleneck_s == pytest.approx(optimum, rel=1e-6)
    loads = loads_from_file(FOLDER / f"{name}.json", plan)
    assert max(loads) * 1e-3 == pytest.approx(plan.bottleneck_s, rel=1e-9)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in references()}))
def test_dynamic_program_and_integer_program_agree(name: str) -> None:
    pytest.importorskip("highspy")
    workload = read(FOLDER / f"{name}.json")
    assert isinstance(workload, Workload)
    plan = plan_workload(workload, host_cpu=False, cross_check=True)
    assert any("agree" in note for note in plan.notes)
