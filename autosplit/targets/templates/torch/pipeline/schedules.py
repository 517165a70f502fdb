"""Orders of work, by the names of the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from .errors import PipelineError

SCHEDULES: dict[str, type[PipelineScheduleSingle]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
}


def make_schedule(
    name: str, stages: list[PipelineStage], microbatches: int, loss: Callable[..., Any] | None
) -> PipelineScheduleSingle:
    """Return a schedule over the stages of this rank.

    1F1B needs as many micro-batches as stages; with fewer it is the same order of work as
    GPipe, which then runs instead.

    Raises
    ------
    PipelineError
        If the name is unknown, or the schedule cannot run that many stages on one rank.
    """
    if name not in SCHEDULES:
        raise PipelineError(f"unknown schedule {name!r}: choose {' or '.join(SCHEDULES)}")
    if len(stages) != 1:
        raise PipelineError(f"{name} runs one stage on each rank, not {len(stages)}")
    schedule = SCHEDULES[name]
    if schedule is Schedule1F1B and microbatches < stages[0].num_stages:
        schedule = ScheduleGPipe
    # The loss is weighted before backward; scaling gradients afterwards would scale one that
    # two stages of a rank share twice.
    return schedule(stages[0], microbatches, loss_fn=loss, scale_grads=False)
