"""What cannot be planned, and what is odd but can: every fault is named, and nothing else fails."""

import json
import os
import random

import pytest

from autosplit import cluster, serialize, workflow
from autosplit.errors import AutosplitError, DataError, InfeasibleError, UsageError
from autosplit.solvers import solve
from autosplit.solvers.base import ChainProblem, Net
from autosplit.solvers.cuts import TooManyError
from autosplit.solvers.downsets import AllCuts
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.ilp import Highs
from autosplit.types import PlanRequest
from tests.builders import profile
from tests.planning import plan

TWO = PlanRequest(2, 8)


@pytest.fixture
def planned(tmp_path):
    """Plan a profile from a file after its JSON was changed."""

    def attempt(change, request=TWO):
        path = tmp_path / "profile.json"
        serialize.dump(profile([1.0] * 4), path)
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
        return workflow.plan(path, request)

    return attempt


# ---------------------------------------------------------------- files


def circle(data):
    data["order_edges"] = [["l3", "l1"]]


def unknown_reader(data):
    data["values"][0]["consumers"] = ["l9"]


def unknown_state(data):
    data["states"] = [
        {"name": "w", "kind": "parameter", "nbytes": 4, "trainable": True, "layers": ["l9"]}
    ]


def time_of(seconds):
    def change(data):
        data["layers"][2]["forward"]["median_s"] = seconds

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (circle, "l3 -> l1"),
        (unknown_reader, "l9"),
        (unknown_state, "l9"),
        (time_of(float("nan")), "NaN"),
        (time_of(float("inf")), "Infinity"),
        (time_of(-1.0), "median_s is -1"),
        (lambda data: data.update(layers=[]), "at least one layer"),
    ],
)
def test_faults_of_a_profile_are_named(planned, change, words):
    with pytest.raises(DataError) as caught:
        planned(change)
    assert words in f"{caught.value.message}\n{caught.value.cause}"


WORKLOAD = {
    "maxFPGAs": 2,
    "maxSizePerFPGA": 10.0,
    "nodes": [
        {"id": key, "fpgaLatency": 1.0, "cpuLatency": 9.0, "size": 1.0, "supportedOnFpga": 1}
        for key in range(3)
    ],
    "edges": [
        {"sourceId": 0, "destId": 1, "cost": 0.5},
        {"sourceId": 1, "destId": 2, "cost": 0.5},
    ],
}


def edge(source, target, cost=0.5):
    return lambda data: data["edges"].append({"sourceId": source, "destId": target, "cost": cost})


def colours(data):
    data["nodes"][0]["colorClass"] = data["nodes"][2]["colorClass"] = "blue"


def budget(number):
    return lambda data: data.update(maxSizePerFPGA=number)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (edge(2, 0), DataError, "cycle"),
        (colours, DataError, "colorClass blue cannot stay together"),
        (edge(0, 7), DataError, "there is no node 7"),
        (edge(0, 2, 0.75), DataError, "node 0 has two costs, 0.5 and 0.75"),
        (edge(1, 2, -0.5), DataError, "-0.5"),
        (edge(1, 2, float("nan")), DataError, "NaN"),
        (budget(float("inf")), DataError, "Infinity"),
        (lambda data: data.update(maxFPGAs=0), DataError, "maxFPGAs is 0"),
        (budget(0.5), InfeasibleError, "alone"),
    ],
)
def test_faults_of_a_workload_are_named(tmp_path, change, error, words):
    data = json.loads(json.dumps(WORKLOAD))
    change(data)
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(data))
    with pytest.raises(error) as caught:
        workflow.place(workflow.read_profile(path), host_cpu=False)
    assert words in f"{caught.value.message}\n{caught.value.cause}"


# ---------------------------------------------------------------- devices


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no devices"),
        ("[[device]]\ncount = 0\n", "count is 0"),
        (
            '[[device]]\ncount = 3\n[[link]]\nbetween = ["device-0", "device-1"]\n'
            'bandwidth = "1GB/s"\n',
            "device-2",
        ),
    ],
)
def test_no_devices_and_devices_without_a_link_are_refused(text, words):
    with pytest.raises(DataError) as caught:
        cluster.parse(text)
    assert words in f"{caught.value.message}\n{caught.value.cause}"


def test_no_stages_and_more_ranks_than_devices_are_refused():
    with pytest.raises(AutosplitError, match="stages is 0"):
        PlanRequest(0, 8)
    one = cluster.parse("[[device]]\n")
    with pytest.raises(UsageError, match="2 ranks, but the cluster has 1 device"):
        plan(profile([1.0] * 4), 2, cluster=one)


def test_a_budget_below_one_layer_names_it():
    with pytest.raises(InfeasibleError) as caught:
        plan(profile([1.0] * 3, param_bytes=[8, 4096, 8]), 2, memory_bytes=1024)
    assert "l1 alone needs" in caught.value.cause


# ---------------------------------------------------------------- odd graphs


@pytest.mark.parametrize(
    ("measured", "stages", "seconds"),
    [
        (profile([2.0]), 1, 6.0),
        (profile([0.0] * 4), 2, 0.0),
        (profile([1.0, 2.0, 3.0], {}), 2, 9.0),
        (profile([1.0] * 4, {(0, 1): 5, (2, 3): 5}), 2, 6.0),
    ],
    ids=["one layer", "no costs", "no edges", "disconnected"],
)
def test_odd_graphs_are_planned(measured, stages, seconds):
    found = plan(measured, stages, objective="bottleneck")
    assert found.objective_s == pytest.approx(seconds)
    assert (found.status, found.gap) == ("optimal", 0.0)
    assert sorted(name for stage in found.stages for name in stage.layers) == sorted(found.order)


# ---------------------------------------------------------------- limits and failures


def test_a_hard_case_within_a_second_has_a_plan_and_its_true_gap():
    """Sixty unequal, independent pieces that divide into four equal parts in one known way."""
    rng = random.Random(4)
    parts = [[rng.uniform(1, 2) for _ in range(15)] for _ in range(4)]
    least = max(map(sum, parts))
    work = [seconds * least / sum(part) for part in parts for seconds in part]
    rng.shuffle(work)
    nets = tuple(Net((node, node + 1), 0.0) for node in range(59))
    problem = ChainProblem(4, tuple(work), (), nets)
    answer = solve(problem, time_limit_s=1.0)
    assert answer.stage_of is not None
    result = evaluate(problem, answer.stage_of)
    assert not result.violations
    assert answer.objective_s == result.objective_s
    assert answer.bound_s <= least * (1 + 1e-9) <= answer.objective_s * (1 + 2e-9)
    assert answer.gap == pytest.approx(1 - answer.bound_s / answer.objective_s)


KILLED = "#!/bin/sh\nkill -9 $$\n"
HALF = "#!/bin/sh\nfor word; do case $word in *.sol) echo 'Optimal - obj' > $word; esac; done\n"


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for the solver is a shell script")
@pytest.mark.parametrize("script", [KILLED, HALF, None], ids=["killed", "half written", "missing"])
def test_a_solver_that_dies_leaves_the_plan_and_says_so(tmp_path, monkeypatch, script):
    pulp = pytest.importorskip("pulp")

    def overflow(*_):
        raise TooManyError

    binary = tmp_path / "cbc"
    if script is not None:
        binary.write_text(script)
        binary.chmod(0o755)
    monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", str(binary))
    monkeypatch.setattr(Highs, "is_available", classmethod(lambda cls: False))
    monkeypatch.setattr(AllCuts, "cut", overflow)
    found = plan(profile([1.0, 3.0, 2.0, 2.0, 1.0]), 2)
    assert found.status == "feasible"
    assert 0 < found.bound_s <= found.objective_s
    words = "not installed" if script is None else "solver cbc failed"
    assert words in " ".join(found.notes)


def test_cbc_answers_where_highs_fails(monkeypatch):
    pytest.importorskip("highspy")

    def die(*_):
        raise OSError("killed")

    monkeypatch.setattr(Highs, "run", die)
    found = plan(profile([1.0, 3.0, 2.0, 2.0, 1.0]), 2, solver="ilp")
    assert (found.status, found.solver) == ("optimal", "cbc")
    assert "solver highs failed" in " ".join(found.notes)
    best = plan(profile([1.0, 3.0, 2.0, 2.0, 1.0]), 2)
    assert found.objective_s == pytest.approx(best.objective_s)
