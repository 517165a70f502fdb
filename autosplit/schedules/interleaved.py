"""Schedules that run several stages on each rank: a smaller bubble for more transfers."""

from __future__ import annotations

from typing import ClassVar

from autosplit.schedules.base import SCHEDULES, Action, Kind, Schedule


class Looped(Schedule):
    """Several stages per rank, dealt out in turn: stage s runs on rank ``s % ranks``."""

    @classmethod
    def default_ranks(cls, stages: int) -> int:
        """Return half as many ranks as stages: two stages on each."""
        return max(1, stages // 2)

    @classmethod
    def default_stages(cls, ranks: int) -> int:
        """Return two stages for each rank."""
        return 2 * ranks

    def check(self) -> None:
        """Refuse stages that do not share out equally."""
        self.check_equal_chunks()


@SCHEDULES.register("looped-bfs")
class LoopedBFS(Looped):
    """Breadth first: all micro-batches of one stage, then of the next (Lamy-Poirier, 2023)."""

    name = "looped-bfs"
    runtime_name = "ScheduleLoopedBFS"

    def rank_order(self, rank: int) -> list[Action]:
        """Return forwards stage by stage, then backwards the whole way back."""
        local = range(rank, self.stages, self.ranks)
        microbatches = range(self.microbatches)
        forward = [Action(Kind.FORWARD, s, m) for s in local for m in microbatches]
        backward = [
            Action(Kind.BACKWARD, s, m) for s in reversed(local) for m in reversed(microbatches)
        ]
        return forward + backward


class Rounds(Looped):
    """Micro-batches in rounds of about as many as there are ranks, depth first."""

    warmup_per_rank: ClassVar[int]
    """Extra warm-up forwards for each rank that follows."""

    def check(self) -> None:
        """Refuse unequal shares, and micro-batches that do not fill whole rounds."""
        super().check()
        rounds = max(1, self.microbatches // self.ranks)
        if self.microbatches % rounds:
            below = self.microbatches - self.microbatches % rounds
            raise self.refuse(
                f"the micro-batches must be a multiple of {rounds} (the number of rounds)",
                f"take --microbatches {below} or {below + rounds}",
            )

    @property
    def round_size(self) -> int:
        """Micro-batches that pass one stage before the rank turns to its next."""
        return self.microbatches // max(1, self.microbatches // self.ranks)

    def warmup(self, rank: int) -> int:
        """Return how many forwards precede the first backward of a rank."""
        ahead = self.warmup_per_rank * (self.ranks - 1 - rank)
        most = self.microbatches * self.chunks
        return min((self.chunks - 1) * self.round_size + ahead, most)

    def turns(self, rank: int, kind: Kind) -> list[Action]:
        """Return all actions of one kind in the order of the rounds.

        Forwards take the stages of the rank upwards, backwards downwards.
        """
        seen = dict.fromkeys(range(rank, self.stages, self.ranks), 0)
        local = tuple(seen) if kind is Kind.FORWARD else tuple(reversed(seen))
        actions = []
        for step in range(self.microbatches * self.chunks):
            stage = local[(step // self.round_size) % self.chunks]
            actions.append(Action(kind, stage, seen[stage]))
            seen[stage] += 1
        return actions


@SCHEDULES.register("interleaved")
class Interleaved(Rounds):
    """1F1B over several stages per rank (Narayanan et al., Megatron-LM, 2021)."""

    name = "interleaved"
    runtime_name = "ScheduleInterleaved1F1B"
    warmup_per_rank = 2

    def rank_order(self, rank: int) -> list[Action]:
        """Return warm-up forwards, then forward and backward in turn, then what is left."""
        forwards = self.turns(rank, Kind.FORWARD)
        backwards = self.turns(rank, Kind.BACKWARD)
        warmup = self.warmup(rank)
        order = forwards[:warmup]
        for step, backward in enumerate(backwards):
            order += forwards[warmup + step : warmup + step + 1]
            order.append(backward)
        return order
