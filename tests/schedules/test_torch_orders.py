"""Our orders are those in which torch's own schedules really run.

Every rank runs a whole step over a process group that sends nothing, and what its stages are
asked to compute is written down.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from autosplit import schedules
from autosplit.errors import UsageError

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")
fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg", exc_type=ImportError)

from autosplit.targets.templates.torch.pipeline.schedules import (  # noqa: E402
    SCHEDULES,
    make_schedule,
)
from autosplit.targets.templates.torch.pipeline.torch_stage import TorchStage  # noqa: E402

CPU = torch.device("cpu")
Done = list[tuple[str, int, int]]


class Recorder(TorchStage):
    """A stage that writes down what it is asked to compute."""

    def __init__(self, index: int, count: int, done: Done) -> None:
        value = torch.empty(1, 2, device="meta", requires_grad=True)
        super().__init__(
            torch.nn.Linear(2, 2),
            index,
            count,
            CPU,
            input_args=value,
            output_args=value,
            dw_builder=lambda: lambda: None,
        )
        self.done = done

    def _warmup_backward_result(self, received_result=None):
        """Answer for the other ranks, which are not there: shapes are known."""
        return torch.ones(1)

    def forward_one_chunk(self, fwd_chunk_id, *args, **kwargs):
        self.done.append(("F", self.stage_index, fwd_chunk_id))
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id, *args, full_backward=True, **kwargs):
        if self.has_backward:
            self.done.append(("B" if full_backward else "I", self.stage_index, bwd_chunk_id))
        super().backward_one_chunk(bwd_chunk_id, *args, full_backward=full_backward, **kwargs)

    def backward_weight_one_chunk(self, bwd_chunk_id, *args, **kwargs):
        if self.has_backward:
            self.done.append(("W", self.stage_index, bwd_chunk_id))
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)


@contextmanager
def alone(rank: int, world: int) -> Iterator[None]:
    """Be one rank of a process group without other processes."""
    dist.init_process_group("fake", rank=rank, world_size=world, store=fake.FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def torch_order(schedule: schedules.Schedule, rank: int, *, training: bool = True) -> Done:
    """Return what a rank computes in one step of torch's schedule."""
    done: Done = []
    mine = [stage for stage in range(schedule.stages) if schedule.rank_of(stage) == rank]
    stages = [Recorder(stage, schedule.stages, done) for stage in mine]
    made = make_schedule(
        schedule.name,
        stages,
        schedule.microbatches,
        (lambda output, target: output.sum()) if training else None,
    )
    assert type(made).__name__ == schedule.runtime_name
    args = (torch.ones(schedule.microbatches, 2),) if 0 in mine else ()
    run = made.step if training else made.eval
    with torch.set_grad_enabled(training):
        run(*args, target=torch.ones(schedule.microbatches), return_outputs=False)
    return done


def runnable(name: str, most: int) -> list[schedules.Schedule]:
    found = []
    for ranks, chunks, microbatches in itertools.product((1, 2, 3, 4), (1, 2, 3), range(1, most)):
        try:
            found.append(schedules.make(name, ranks * chunks, microbatches, ranks))
        except UsageError:
            continue
    return found


def test_the_export_runs_every_schedule_of_the_planner():
    assert set(SCHEDULES) == set(schedules.SCHEDULES)
    for name, kind in SCHEDULES.items():
        planned = schedules.SCHEDULES[name]
        assert kind.runtime == planned.runtime_name
        assert kind.split == any(
            action.kind.value == "W"
            for schedule in runnable(name, 9)
            for rank in schedule.order
            for action in rank
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_orders_are_equal(name: str):
    tried = runnable(name, 10)
    assert len(tried) > 15
    for schedule in tried:
        for rank, actions in enumerate(schedule.order):
            ours = [(action.kind.value, action.stage, action.microbatch) for action in actions]
            with alone(rank, schedule.ranks):
                assert torch_order(schedule, rank) == ours, schedule


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", list(SCHEDULES))
def test_inference_runs_the_forwards_in_that_order(name: str):
    for schedule in runnable(name, 6):
        for rank, actions in enumerate(schedule.order):
            ours = [("F", a.stage, a.microbatch) for a in actions if a.kind.value == "F"]
            with alone(rank, schedule.ranks):
                assert torch_order(schedule, rank, training=False) == ours, schedule
