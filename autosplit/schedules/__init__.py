"""Schedules: the order in which ranks run forwards and backwards, each with its rules."""

from autosplit.schedules import gpipe, interleaved, one_f_one_b, zero_bubble
from autosplit.schedules.base import (
    SCHEDULES,
    Action,
    Kind,
    Order,
    Schedule,
    count_in_flight,
)
from autosplit.schedules.fitting import fitting

__all__ = [
    "SCHEDULES",
    "Action",
    "Kind",
    "Order",
    "Schedule",
    "count_in_flight",
    "fitting",
    "gpipe",
    "interleaved",
    "make",
    "one_f_one_b",
    "zero_bubble",
]


def make(name: str, stages: int, microbatches: int, ranks: int | None = None) -> Schedule:
    """Return the schedule of that name for these numbers.

    Raises
    ------
    UsageError
        If the name is unknown or the schedule cannot run these numbers.
    """
    kind = SCHEDULES[name]
    return kind(stages, microbatches, ranks or kind.default_ranks(stages))
