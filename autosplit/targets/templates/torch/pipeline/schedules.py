"""Orders of work, by the names of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from .errors import PipelineError

Schedule: TypeAlias = PipelineScheduleSingle | PipelineScheduleMulti

SINGLE: dict[str, type[PipelineScheduleSingle]] = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}
"""One stage on each rank."""

MULTI: dict[str, type[ScheduleLoopedBFS | ScheduleInterleaved1F1B]] = {
    "looped-bfs": ScheduleLoopedBFS,
    "interleaved": ScheduleInterleaved1F1B,
}
"""Several stages on each rank: stage K on rank K modulo the number of ranks."""


def schedule_names(stages_per_rank: int) -> tuple[str, ...]:
    """Return the schedules that can run that many stages on each rank."""
    return tuple(SINGLE if stages_per_rank == 1 else MULTI)


def make_schedule(
    name: str, stages: list[PipelineStage], microbatches: int, loss: Callable[..., Any] | None
) -> Schedule:
    """Return a schedule over the stages of one rank.

    Where torch's 1F1B schedules cannot run the number of micro-batches, one that runs all
    forwards first stands in: a last step with few micro-batches is no reason to fail.

    Raises
    ------
    PipelineError
        If the schedule cannot run that many stages on one rank, or torch is too old.
    """
    names = schedule_names(len(stages))
    if name not in names:
        raise PipelineError(
            f"schedule {name!r} does not run {len(stages)} stages on each rank: "
            f"choose {' or '.join(names)}"
        )
    if "return_outputs" not in inspect.signature(ScheduleGPipe.step).parameters:
        raise PipelineError("this torch is too old: its schedules cannot leave outputs alone")
    # The loss is weighted before backward; scaling gradients afterwards would scale one that
    # two stages of a rank share twice.
    if len(stages) == 1:
        single = SINGLE[name if microbatches >= stages[0].num_stages else "gpipe"]
        return single(stages[0], microbatches, loss_fn=loss, scale_grads=False)
    rounds = max(1, microbatches // stages[0].group_size)
    multi = MULTI[name if microbatches % rounds == 0 else "looped-bfs"]
    return multi(list(stages), microbatches, loss_fn=loss, scale_grads=False)
