"""Our orders are those that torch's own schedules would run."""

import itertools

import pytest

from autosplit import schedules
from autosplit.errors import UsageError

torch_schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

LETTERS = {"FORWARD": "F", "FULL_BACKWARD": "B", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W"}
# 1F1B is left out: torch runs it from a loop, and the table it draws of it is another.
NAMES = ["interleaved", "looped-bfs", "zero-bubble", "zbv", "dualpipev"]


def torch_order(schedule, rank):
    """Return the order torch computes for a rank, without the process group it asks for."""
    kind = getattr(torch_schedules, schedule.runtime_name)
    if not hasattr(kind, "_calculate_single_rank_operations"):
        pytest.skip("this torch computes its orders in another way")
    made = kind.__new__(kind)
    made.pp_group_size = schedule.ranks
    made._n_microbatches = schedule.microbatches
    made.n_local_stages = schedule.chunks
    made.num_stages = made._num_stages = schedule.stages
    made._stages = [None] * schedule.chunks
    made.rank = rank
    made.number_of_rounds = max(1, schedule.microbatches // schedule.ranks)
    made.microbatches_per_round = schedule.microbatches // made.number_of_rounds
    actions = made._calculate_single_rank_operations(rank)
    flat = [part for action in actions if action for part in action.sub_actions or (action,)]
    return [
        (LETTERS[action.computation_type.name], action.stage_index, action.microbatch_index)
        for action in flat
    ]


@pytest.mark.parametrize("name", NAMES)
def test_orders_are_equal(name):
    compared = 0
    for ranks, chunks, microbatches in itertools.product((1, 2, 3, 4), (1, 2, 3), range(1, 11)):
        try:
            schedule = schedules.make(name, ranks * chunks, microbatches, ranks)
        except UsageError:
            continue
        for rank, actions in enumerate(schedule.order):
            ours = [(action.kind.value, action.stage, action.microbatch) for action in actions]
            assert ours == torch_order(schedule, rank)
        compared += 1
    assert compared > 15
