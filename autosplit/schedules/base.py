"""What a schedule is: in which order each rank runs forwards and backwards of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar

from autosplit.errors import UsageError
from autosplit.registry import Registry
from autosplit.units import counted


class Kind(str, Enum):
    """What an action computes; the letters are those of torch's schedule tables."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True)
class Action:
    """One piece of work: a kind, for one stage and one micro-batch."""

    kind: Kind
    stage: int
    microbatch: int


Order = tuple[tuple[Action, ...], ...]
"""Actions of each rank, in running order."""

LARGEST_STEP = 1_000_000
"""Most forwards of a step: what is beyond takes minutes and gigabytes to simulate."""


@dataclass(frozen=True)
class Schedule(ABC):
    """Order of work of one training step.

    Parameters
    ----------
    stages
        Number of stages (S).
    microbatches
        Number of micro-batches (M).
    ranks
        Number of devices; a rank runs ``stages / ranks`` stages.

    Raises
    ------
    UsageError
        If the schedule cannot run these numbers; the rules are those of torch's runtime.
    """

    stages: int
    microbatches: int
    ranks: int

    name: ClassVar[str]
    """Name on the command line and in plans."""

    runtime_name: ClassVar[str]
    """Class in ``torch.distributed.pipelining`` that runs it."""

    v_shaped: ClassVar[bool] = False
    """Whether the second half of the stages runs back over the ranks (0, 1, 1, 0)."""

    def __post_init__(self) -> None:
        for field in ("stages", "microbatches", "ranks"):
            value = getattr(self, field)
            if value < 1:
                raise UsageError(f"{field} is {value}", hint="it must be at least 1")
        if self.stages * self.microbatches > LARGEST_STEP:
            raise UsageError(
                f"a step of {counted(self.stages, 'stage')} and "
                f"{counted(self.microbatches, 'micro-batch')} is too large to simulate",
                cause=f"stages times micro-batches may be {LARGEST_STEP} at most",
            )
        self.check()

    @classmethod
    def default_ranks(cls, stages: int) -> int:
        """Return the number of ranks for ``stages`` when none is asked for."""
        return stages

    @classmethod
    def default_stages(cls, ranks: int) -> int:
        """Return the number of stages for ``ranks`` when none is asked for."""
        return ranks

    @abstractmethod
    def check(self) -> None:
        """Refuse numbers that the runtime refuses."""

    @abstractmethod
    def rank_order(self, rank: int) -> list[Action]:
        """Return the work of one rank in running order."""

    @property
    def chunks(self) -> int:
        """Stages on each rank."""
        return self.stages // self.ranks

    def rank_of(self, stage: int) -> int:
        """Return the rank that runs ``stage``."""
        if self.v_shaped and stage >= self.ranks:
            return self.stages - 1 - stage
        return stage % self.ranks

    @cached_property
    def order(self) -> Order:
        """Work of every rank in running order."""
        return tuple(tuple(self.rank_order(rank)) for rank in range(self.ranks))

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Micro-batches whose activations each stage holds at its peak."""
        return count_in_flight(self.order, self.stages)

    def refuse(self, cause: str, hint: str) -> UsageError:
        """Return the error for numbers that the schedule cannot run."""
        return UsageError(
            f"schedule {self.name} cannot run {counted(self.stages, 'stage')} with "
            f"{counted(self.microbatches, 'micro-batch')} on {counted(self.ranks, 'rank')}",
            cause=cause,
            hint=hint,
        )

    def check_one_stage_per_rank(self) -> None:
        """Refuse more stages than ranks."""
        if self.stages != self.ranks:
            raise self.refuse(
                "it runs one stage on each rank",
                "take as many stages as ranks, or --schedule interleaved",
            )

    def check_equal_chunks(self) -> None:
        """Refuse stages that do not share out equally over the ranks."""
        if self.stages % self.ranks:
            raise self.refuse(
                "every rank must run the same number of stages",
                f"take a multiple of {self.ranks} stages",
            )


SCHEDULES: Registry[type[Schedule]] = Registry("schedule")


def count_in_flight(order: Order, stages: int) -> tuple[int, ...]:
    """Return for each stage the most micro-batches between forward and end of backward.

    A backward in two parts holds its activations until the weight gradients are done.
    """
    split = {action.stage for rank in order for action in rank if action.kind == "W"}
    held = [0] * stages
    peak = [0] * stages
    for rank in order:
        for action in rank:
            stage = action.stage
            if action.kind == "F":
                held[stage] += 1
                peak[stage] = max(peak[stage], held[stage])
            elif action.kind != "I" or stage not in split:
                held[stage] -= 1
    return tuple(peak)
