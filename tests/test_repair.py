"""More recomputation makes room where solvers counted too little."""

import dataclasses

import pytest

from autosplit import graph
from autosplit.errors import InfeasibleError
from autosplit.planner import cost_model, plan
from autosplit.repair import with_room
from autosplit.types import PlanRequest
from tests.builders import profile, random_profile

CHAIN = profile([1.0, 2.0, 3.0, 4.0], saved_bytes=[100] * 4)


def model(memory_bytes):
    request = PlanRequest(2, 4, memory_bytes=memory_bytes, optimizer="sgd")
    return cost_model(graph.build(CHAIN), request)


def test_the_cheapest_layers_of_the_full_device_are_recomputed():
    costs = model(330)
    assert costs.rank_excess(costs.evaluate((0, 0, 1, 1)))[0] > 0
    again = with_room(costs, (0, 0, 1, 1), ())
    assert again == {0}
    assert not any(costs.rank_excess(costs.evaluate((0, 0, 1, 1), again)))


def test_nothing_changes_where_nothing_helps():
    assert with_room(model(10), (0, 0, 1, 1), {3}) == {3}
    assert with_room(model(10_000), (0, 0, 1, 1), ()) == frozenset()


@pytest.mark.parametrize("seed", range(6))
def test_a_choice_for_each_layer_is_never_worse_than_one_for_all(seed):
    subject = random_profile(seed, 8, memory=True)
    free = plan(subject, PlanRequest(2, 4))
    request = PlanRequest(2, 4, memory_bytes=int(0.8 * max(free.memory_by_rank)))

    def objective(mode):
        try:
            return plan(subject, dataclasses.replace(request, recompute=mode), explain=False)
        except InfeasibleError:
            return None

    auto, others = objective("auto"), [objective("none"), objective("all")]
    for other in filter(None, others):
        assert auto.objective_s <= other.objective_s * (1 + 1e-9)
        assert auto.bound_s <= other.objective_s * (1 + 1e-9)
