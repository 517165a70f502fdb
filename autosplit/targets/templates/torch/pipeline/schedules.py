"""Orders of work, by the names of the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch.distributed.pipelining as pipelining
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

from .errors import PipelineError

Schedule: TypeAlias = PipelineScheduleSingle | PipelineScheduleMulti


@dataclass(frozen=True)
class Kind:
    """What a schedule needs.

    Parameters
    ----------
    runtime
        Class in ``torch.distributed.pipelining``.
    placement
        "single": one stage on each rank. "loop": stage K on rank K modulo the number of ranks.
        "v": two stages on each rank, the second half of the stages running back (0, 1, 1, 0).
    split
        Whether it computes gradients of weights later than those of inputs.
    """

    runtime: str
    placement: Literal["single", "loop", "v"]
    split: bool = False


SCHEDULES = {
    "gpipe": Kind("ScheduleGPipe", "single"),
    "1f1b": Kind("Schedule1F1B", "single"),
    "looped-bfs": Kind("ScheduleLoopedBFS", "loop"),
    "interleaved": Kind("ScheduleInterleaved1F1B", "loop"),
    "zero-bubble": Kind("ScheduleInterleavedZeroBubble", "loop", split=True),
    "zbv": Kind("ScheduleZBVZeroBubble", "v", split=True),
    "dualpipev": Kind("ScheduleDualPipeV", "v", split=True),
}


def schedule_names(ranks: Sequence[int]) -> tuple[str, ...]:
    """Return the schedules that can run stages on these ranks, one rank for each stage."""
    count, stages = max(ranks) + 1, len(ranks)
    loop = [stage % count for stage in range(stages)]
    fits = {
        "single": list(ranks) == list(range(stages)),
        "loop": list(ranks) == loop and stages % count == 0,
        "v": list(ranks) == [min(stage, 2 * count - 1 - stage) for stage in range(2 * count)],
    }
    return tuple(name for name, kind in SCHEDULES.items() if fits[kind.placement])


def find_schedule(name: str, ranks: Sequence[int]) -> Kind:
    """Return what is known of a schedule that is to run stages on these ranks.

    Raises
    ------
    PipelineError
        If there is none of that name, or it wants its stages on other ranks.
    """
    names = schedule_names(ranks)
    if name not in names:
        raise PipelineError(
            f"schedule {name!r} does not run {len(ranks)} stages on ranks "
            f"{', '.join(map(str, ranks))}: choose {' or '.join(names)}"
        )
    return SCHEDULES[name]


def make_schedule(
    name: str,
    stages: Sequence[pipelining.PipelineStage],
    microbatches: int,
    loss: Callable[..., Any] | None,
) -> Schedule:
    """Return a schedule over the stages of one rank.

    Where it cannot run the number of micro-batches, one with fewer demands on the same ranks
    stands in: a last step with few micro-batches is no reason to fail.

    Raises
    ------
    PipelineError
        If torch is too old for the schedule.
    """
    kind = SCHEDULES[_possible(name, stages, microbatches)]
    made: Any = getattr(pipelining, kind.runtime, None)
    if made is None:
        raise PipelineError(f"this torch is too old for schedule {name!r}")
    if "return_outputs" not in inspect.signature(pipelining.ScheduleGPipe.step).parameters:
        raise PipelineError("this torch is too old: its schedules cannot leave outputs alone")
    given = stages[0] if kind.placement == "single" else list(stages)
    # The loss is weighted before backward; scaling gradients afterwards would scale one that
    # two stages of a rank share twice.
    schedule: Schedule = made(given, microbatches, loss_fn=loss, scale_grads=False)
    return schedule


def _possible(name: str, stages: Sequence[pipelining.PipelineStage], microbatches: int) -> str:
    """Return the schedule, or the one that stands in for it with that few micro-batches."""
    few = microbatches < stages[0].num_stages
    rounds = max(1, microbatches // stages[0].group_size)
    if name == "1f1b" and few:
        return "gpipe"
    if name == "dualpipev" and few:
        return "zbv"
    if name in ("interleaved", "zero-bubble") and microbatches % rounds:
        return "looped-bfs"
    return name
