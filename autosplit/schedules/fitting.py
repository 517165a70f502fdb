"""Which schedules run stages that have their ranks already, and with how many micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

from autosplit.errors import UsageError
from autosplit.schedules.base import SCHEDULES, Schedule


def fitting(ranks: Sequence[int], at_least: int) -> tuple[Schedule, ...]:
    """Return every schedule that runs stage ``k`` on ``ranks[k]``.

    Each has the fewest micro-batches that it can run, but not fewer than ``at_least``.
    """
    found = (_fewest(SCHEDULES[name], ranks, at_least) for name in SCHEDULES)
    return tuple(schedule for schedule in found if schedule is not None)


def _fewest(kind: type[Schedule], ranks: Sequence[int], at_least: int) -> Schedule | None:
    stages, count = len(ranks), max(ranks) + 1
    # Whole rounds of one micro-batch a rank always run, and so do as many as there are stages.
    for microbatches in range(at_least, max(at_least, stages) + count + 1):
        try:
            schedule = kind(stages, microbatches, count)
        except UsageError:
            continue
        if all(schedule.rank_of(stage) == rank for stage, rank in enumerate(ranks)):
            return schedule
    return None
