"""GPipe: all forwards, then all backwards (Huang et al., 2019)."""

from __future__ import annotations

from autosplit.schedules.base import SCHEDULES, Action, Kind, Schedule


@SCHEDULES.register("gpipe")
class GPipe(Schedule):
    """Fill and drain: simple, and every stage holds every micro-batch."""

    name = "gpipe"
    runtime_name = "ScheduleGPipe"

    def check(self) -> None:
        """Refuse more than one stage per rank."""
        self.check_one_stage_per_rank()

    def rank_order(self, rank: int) -> list[Action]:
        """Return all forwards, then all backwards, first micro-batch first."""
        return [
            Action(kind, rank, microbatch)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for microbatch in range(self.microbatches)
        ]
