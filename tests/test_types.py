from dataclasses import FrozenInstanceError, fields, replace

import pytest

from autosplit.errors import DataError, VerificationError
from autosplit.types import (
    Artifact,
    BatchCheck,
    Comparison,
    ModelRef,
    PlanRequest,
    StageMemory,
    Timing,
    VerificationReport,
)
from tests import examples


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1e-9])
def test_a_time_is_a_finite_number_from_zero(number):
    with pytest.raises(DataError, match="median_s is"):
        Timing(number)


def test_types_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Timing(1.0).median_s = 2.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": ()}, "at least one layer"),
        ({"order_edges": (("embed", "nowhere"),)}, "'nowhere' does not exist"),
    ],
)
def test_a_profile_knows_its_layers(change, words):
    with pytest.raises(DataError, match=words):
        examples.profile(**change)


def test_a_profile_refuses_a_layer_twice():
    layers = examples.profile().layers
    with pytest.raises(DataError, match="layer 'embed' appears twice"):
        examples.profile(layers=(*layers, layers[0]))


def test_a_plan_holds_every_layer_once():
    plan = examples.plan()
    first, second = plan.stages
    with pytest.raises(DataError, match="layer 'head' appears twice"):
        replace(plan, stages=(replace(first, layers=(*first.layers, "head")), second))
    with pytest.raises(DataError, match="layers without a stage: embed"):
        replace(plan, stages=(replace(first, layers=first.layers[1:]), second))
    with pytest.raises(DataError, match="layer 'tail' does not exist"):
        replace(plan, stages=(first, replace(second, layers=("head", "tail"))))
    with pytest.raises(DataError, match="at least one stage"):
        replace(plan, stages=())


def test_no_stage_is_empty():
    with pytest.raises(DataError, match="at least one layer"):
        replace(examples.plan().stages[0], layers=())


def test_a_plan_knows_the_stage_of_every_operation():
    stage_of = examples.plan().stage_of_node
    assert len(stage_of) == 2 * len(examples.NAMES)
    assert stage_of["node_0"] == stage_of["node_6_b"] == 0
    assert stage_of["node_7"] == stage_of["node_7_b"] == 1


def test_a_plan_refuses_operations_that_do_not_fit_its_layers():
    plan = examples.plan()
    with pytest.raises(DataError, match="nodes must name every layer's"):
        replace(plan, nodes=plan.nodes[1:])
    with pytest.raises(DataError, match="node 'node_0' appears twice"):
        replace(plan, nodes=(*plan.nodes[:-1], ("node_0",)))


@pytest.mark.parametrize(
    "change",
    [
        {"stages": 0},
        {"microbatches": 0},
        {"memory_bytes": -1},
        {"link_bytes_per_s": 0.0},
        {"latency_s": float("nan")},
        {"time_limit_s": -1.0},
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(change):
    with pytest.raises(DataError):
        PlanRequest(**{"stages": 2, "microbatches": 4, **change})


def test_a_batch_has_rows():
    with pytest.raises(DataError, match="batch_size is 0"):
        ModelRef("model.py:build", batch_size=0)


@pytest.mark.parametrize("field", [field.name for field in fields(StageMemory)])
def test_memory_is_not_negative(field):
    with pytest.raises(DataError, match=f"{field} is -1"):
        StageMemory(**{field: -1})


def test_memory_adds_up():
    memory = StageMemory(1, 2, 4, 8, 16, 32)
    assert memory.total_bytes == 63


@pytest.mark.parametrize("path", ["../train.py", "/train.py", "stages/../../x", ""])
def test_an_artifact_stays_in_its_folder(path):
    with pytest.raises(DataError, match="leaves the folder"):
        Artifact(path, "text")


def report(comparison):
    check = BatchCheck("train", 4, 2, (comparison,))
    return VerificationReport("out", False, 1e-5, Comparison("checkpoint", 1, 0.0), (check,))


def test_a_verification_passes_within_its_tolerance():
    close = report(Comparison("gradients", 3, 1e-6, "w"))
    assert close.passed
    close.raise_if_failed()


@pytest.mark.parametrize(
    ("comparison", "cause"),
    [
        (Comparison("gradients", 3, 1e-4, "w"), "w differs by 0.0001, more than 1e-05"),
        (Comparison("gradients", 3, 0.0, None, ("w has no gradient",)), "w has no gradient"),
    ],
)
def test_a_verification_fails_with_what_differs(comparison, cause):
    failed = report(comparison)
    assert not failed.passed
    with pytest.raises(VerificationError, match="gradients of out differ") as caught:
        failed.raise_if_failed()
    assert caught.value.cause == cause
    assert caught.value.exit_code == 5
