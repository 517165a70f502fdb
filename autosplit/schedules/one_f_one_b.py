"""1F1B: one forward, one backward in turn (Narayanan et al., PipeDream-Flush, 2021)."""

from __future__ import annotations

from autosplit.schedules.base import SCHEDULES, Action, Kind, Schedule


@SCHEDULES.register("1f1b")
class OneFOneB(Schedule):
    """As fast as GPipe, and stage s holds at most ``S - s`` micro-batches."""

    name = "1f1b"
    runtime_name = "Schedule1F1B"

    def check(self) -> None:
        """Refuse more than one stage per rank, and fewer micro-batches than stages."""
        self.check_one_stage_per_rank()
        if self.microbatches < self.stages:
            raise self.refuse(
                "1F1B needs at least as many micro-batches as stages",
                f"take --microbatches {self.stages} or more, or --schedule gpipe",
            )

    def rank_order(self, rank: int) -> list[Action]:
        """Return warm-up forwards, then backward and forward in turn, then what is left."""
        warmup = min(self.microbatches, self.stages - rank)
        order = [Action(Kind.FORWARD, rank, microbatch) for microbatch in range(warmup)]
        for microbatch in range(self.microbatches):
            order.append(Action(Kind.BACKWARD, rank, microbatch))
            if microbatch + warmup < self.microbatches:
                order.append(Action(Kind.FORWARD, rank, microbatch + warmup))
        return order
