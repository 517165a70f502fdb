"""Workload files: what they mean, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autosplit.errors import DataError, InfeasibleError
from autosplit.readers import Workload, plan_workload, read


def node(key: int, seconds: float = 1.0, **fields: Any) -> dict[str, Any]:
    entry = {"id": key, "name": f"op{key}", "fpgaLatency": seconds, "cpuLatency": 10 * seconds}
    entry |= {"supportedOnFpga": 1, "isBackwardNode": 0, "size": 1.0}
    return entry | fields


def edge(source: int, target: int, cost: float = 0.0) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": cost}


def chain(count: int = 4) -> dict[str, Any]:
    return {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 100.0,
        "nodes": [node(key) for key in range(count)],
        "edges": [edge(key, key + 1) for key in range(count - 1)],
    }


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def write(data: Any) -> Any:
        path = tmp_path / "workload.json"
        path.write_text(data if isinstance(data, str) else json.dumps(data))
        return read(path)

    return write


def test_times_are_milliseconds_and_every_device_pays_for_a_cut_sender(load: Any) -> None:
    data = chain()
    data["edges"][1]["cost"] = 0.25
    plan = plan_workload(load(data), host_cpu=False)
    assert plan.status == "optimal"
    assert plan.bottleneck_s == pytest.approx(2.25e-3)
    assert [stage.layers for stage in plan.stages] == [("op0", "op1"), ("op2", "op3")]
    assert plan.stages[0].communication_s == pytest.approx(0.25e-3)
    assert plan.stages[0].device == "accelerator 0"
    assert plan.stages[0].memory_bytes == 2


def test_host_cpu_takes_nodes_without_paying(load: Any) -> None:
    data = chain(3)
    data["nodes"][0]["cpuLatency"] = 0.5
    data["edges"][0]["cost"] = 0.1
    plan = plan_workload(load(data))
    assert plan.bottleneck_s == pytest.approx(1.1e-3)
    assert (plan.stages[0].device, plan.stages[0].layers) == ("cpu 0", ("op0",))
    assert plan.stages[0].communication_s == 0
    assert plan_workload(load(data), host_cpu=False).bottleneck_s == pytest.approx(2.0e-3)


def test_unsupported_node_goes_to_the_host_or_nowhere(load: Any) -> None:
    data = chain()
    data["nodes"][3]["supportedOnFpga"] = 0
    workload = load(data)
    plan = plan_workload(workload)
    host = [stage for stage in plan.stages if stage.device == "cpu 0"]
    assert host[0].layers == ("op3",)
    with pytest.raises(InfeasibleError, match="op3 runs on the host CPU alone"):
        plan_workload(workload, host_cpu=False)


def test_colour_class_ties_backward_to_forward(load: Any) -> None:
    data = chain(2)
    for key in (0, 1):
        data["nodes"][key]["colorClass"] = key
        data["nodes"].append(node(10 + key, 2.0, isBackwardNode=1, colorClass=key))
    data["edges"] += [edge(1, 11), edge(11, 10)]
    workload = load(data)
    assert isinstance(workload, Workload)
    assert workload.nodes == (("op0", "op10"), ("op1", "op11"))
    plan = plan_workload(workload, host_cpu=False)
    assert plan.bottleneck_s == pytest.approx(3e-3)
    assert plan.stages[0].forward_s == pytest.approx(1e-3)
    assert plan.stages[0].backward_s == pytest.approx(2e-3)


def test_memory_that_fits_nowhere_names_the_largest_node(load: Any) -> None:
    data = chain()
    data["nodes"][2]["size"] = 500.0
    with pytest.raises(InfeasibleError) as caught:
        plan_workload(load(data), host_cpu=False)
    assert "op2 alone 500" in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["edges"].append(edge(3, 0)), "edges form a cycle"),
        (lambda d: d["edges"].append(edge(1, 99)), r"edges\[3\].destId: there is no node 99"),
        (lambda d: d["edges"].append(edge(0, 2, 5.0)), "node 0 has two costs, 0 and 5"),
        (lambda d: d["nodes"][1].update(fpgaLatency=-1), r"nodes\[1\].fpgaLatency is -1"),
        (lambda d: d["nodes"][1].update(size="big"), r"nodes\[1\].size: expected a number"),
        (lambda d: d["nodes"][1].pop("cpuLatency"), r"nodes\[1\]: field 'cpuLatency' is missing"),
        (lambda d: d["nodes"].append(node(1)), "node 1 appears twice"),
        (lambda d: d["nodes"].clear(), r"edges\[0\].sourceId|nodes is empty"),
        (lambda d: d.update(maxFPGAs=0), "maxFPGAs is 0"),
        (lambda d: d.update(maxFPGAs=1.5), "maxFPGAs is 1.5"),
        (lambda d: d.pop("maxSizePerFPGA"), "field 'maxSizePerFPGA' is missing"),
        (lambda d: d.update(edges={}), "edges must be a list"),
        (lambda d: d["nodes"][1].update(isBackwardNode="no"), "expected true or false"),
    ],
)
def test_faults_are_refused_by_place(load: Any, change: Any, message: str) -> None:
    data = chain()
    change(data)
    with pytest.raises(DataError, match=message):
        load(data)


def test_colour_class_that_closes_a_cycle_is_named(load: Any) -> None:
    data = chain(3)
    data["nodes"][0]["colorClass"] = data["nodes"][2]["colorClass"] = 7
    with pytest.raises(DataError) as caught:
        load(data)
    assert "colorClass 7 cannot stay together" in str(caught.value)
    assert "op0 -> op1" in str(caught.value)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(load: Any, text: str) -> None:
    raw = json.dumps(chain()).replace('"fpgaLatency": 1.0', f'"fpgaLatency": {text}', 1)
    with pytest.raises(DataError, match=r"NaN|Infinity|inf"):
        load(raw)


def test_disconnected_zero_cost_and_single_nodes_are_planned(load: Any) -> None:
    data = chain(1)
    assert plan_workload(load(data)).bottleneck_s == pytest.approx(1e-3)
    data = chain(5)
    data["edges"] = []
    assert plan_workload(load(data), host_cpu=False).bottleneck_s == pytest.approx(3e-3)
    data["nodes"] = [node(key, 0.0) for key in range(5)]
    assert plan_workload(load(data)).bottleneck_s == 0
