"""Schedules that run the two halves of a backward apart to fill the bubble.

The gradient of a stage's inputs is computed first, because the stage before waits for it; the
gradients of its weights follow when the rank would otherwise idle.
"""

from __future__ import annotations

from collections import deque

from autosplit.schedules.base import SCHEDULES, Action, Kind, Schedule
from autosplit.schedules.interleaved import Rounds


@SCHEDULES.register("zero-bubble")
class ZeroBubble(Rounds):
    """ZB1P over one or more stages per rank (Qi et al., 2023)."""

    name = "zero-bubble"
    runtime_name = "ScheduleInterleavedZeroBubble"
    warmup_per_rank = 1

    def rank_order(self, rank: int) -> list[Action]:
        """Return 1F1B with input gradients; weight gradients lag by ``rank`` micro-batches."""
        forwards = self.turns(rank, Kind.FORWARD)
        inputs = self.turns(rank, Kind.BACKWARD_INPUT)
        weights = self.turns(rank, Kind.BACKWARD_WEIGHT)
        warmup = self.warmup(rank)
        order = forwards[:warmup]
        done = 0
        for step, backward in enumerate(inputs):
            order += forwards[warmup + step : warmup + step + 1]
            order.append(backward)
            if step >= rank:
                order.append(weights[done])
                done += 1
        return order + weights[done:]


class VShaped(Schedule):
    """Two stages per rank, the second half of the stages running back: 0, 1, 1, 0."""

    v_shaped = True

    @classmethod
    def default_ranks(cls, stages: int) -> int:
        """Return half as many ranks as stages."""
        return max(1, stages // 2)

    @classmethod
    def default_stages(cls, ranks: int) -> int:
        """Return two stages for each rank."""
        return 2 * ranks

    def check(self) -> None:
        """Refuse anything but two stages on each rank."""
        if self.stages != 2 * self.ranks:
            raise self.refuse(
                "it runs exactly two stages on each rank", f"take {2 * self.ranks} stages"
            )


class _Work:
    """Actions of one rank, each kind and stage counting its own micro-batches."""

    def __init__(self) -> None:
        self.actions: list[Action] = []
        self.pending: deque[Action] = deque()
        self._next: dict[tuple[Kind, int], int] = {}

    def add(self, kind: Kind, stage: int) -> None:
        """Append the next micro-batch; an input gradient leaves its weights pending."""
        counter = Kind.BACKWARD_INPUT if kind is Kind.BACKWARD else kind
        microbatch = self._next.get((counter, stage), 0)
        self._next[counter, stage] = microbatch + 1
        self.actions.append(Action(kind, stage, microbatch))
        if kind is Kind.BACKWARD_INPUT:
            self.pending.append(Action(Kind.BACKWARD_WEIGHT, stage, microbatch))

    def backward(self, stage: int) -> None:
        """Append both halves of a backward, one directly after the other."""
        self.add(Kind.BACKWARD_INPUT, stage)
        self.actions.append(self.pending.pop())

    def add_pending(self) -> None:
        """Append the oldest pending weight gradients, if there are any."""
        if self.pending:
            self.actions.append(self.pending.popleft())

    def count(self, kind: Kind, stage: int) -> int:
        """Return how many micro-batches of a kind have been appended for a stage."""
        return self._next.get((kind, stage), 0)


@SCHEDULES.register("zbv")
class ZBV(VShaped):
    """Zero bubble in a V, with the memory of 1F1B (Qi et al., 2024)."""

    name = "zbv"
    runtime_name = "ScheduleZBVZeroBubble"

    def rank_order(self, rank: int) -> list[Action]:
        """Return the order for a full pipeline, without the micro-batches that do not exist."""
        down, up = rank, self.stages - 1 - rank
        full = max(2 * self.ranks - 1, self.microbatches)
        work = _Work()
        for _ in range(2 * (self.ranks - rank) - 1):
            work.add(Kind.FORWARD, down)
        for _ in range(rank):
            work.add(Kind.FORWARD, up)
            work.add(Kind.FORWARD, down)
        for _ in range(self.ranks - rank):
            work.add(Kind.FORWARD, up)
            work.backward(up)
        while work.count(Kind.FORWARD, up) < full:
            if work.count(Kind.FORWARD, down) < full:
                work.add(Kind.FORWARD, down)
            work.backward(down)
            work.add(Kind.FORWARD, up)
            work.backward(up)
        for _ in range(rank):
            work.add(Kind.BACKWARD_INPUT, down)
            work.add(Kind.BACKWARD_INPUT, up)
        weights = {stage: [w for w in work.pending if w.stage == stage] for stage in (down, up)}
        for _ in range(self.ranks - rank):
            work.add(Kind.BACKWARD_INPUT, down)
            weights[down].append(work.pending.pop())
            work.actions.append(weights[down].pop(0))
        work.actions += weights[up] + weights[down]
        return [action for action in work.actions if action.microbatch < self.microbatches]


@SCHEDULES.register("dualpipev")
class DualPipeV(VShaped):
    """DualPipe folded into a V (DeepSeek-AI, 2025)."""

    name = "dualpipev"
    runtime_name = "ScheduleDualPipeV"

    def check(self) -> None:
        """Refuse other placements, and fewer micro-batches than stages."""
        super().check()
        if self.microbatches < self.stages:
            raise self.refuse(
                "DualPipeV needs at least as many micro-batches as stages",
                f"take --microbatches {self.stages} or more",
            )

    def rank_order(self, rank: int) -> list[Action]:
        """Return the eight phases of the published order; an overlapped pair runs in turn."""
        down, up = rank, self.stages - 1 - rank
        after = self.ranks - rank - 1
        work = _Work()
        for _ in range(2 * after):
            work.add(Kind.FORWARD, down)
        for _ in range(rank + 1):
            work.add(Kind.FORWARD, down)
            work.add(Kind.FORWARD, up)
        for _ in range(after):
            work.add(Kind.BACKWARD_INPUT, up)
            work.add_pending()
            work.add(Kind.FORWARD, up)
        for _ in range(self.microbatches - 2 * self.ranks + rank + 1):
            work.add(Kind.FORWARD, down)
            work.add(Kind.BACKWARD, up)
            work.add(Kind.FORWARD, up)
            work.add(Kind.BACKWARD, down)
        for _ in range(after):
            work.add(Kind.BACKWARD, up)
            work.add(Kind.FORWARD, up)
            work.add(Kind.BACKWARD, down)
        self._drain(work, rank, down, up)
        return work.actions

    def _drain(self, work: _Work, rank: int, down: int, up: int) -> None:
        """Append the last backwards, from half way on with the weight gradients put off."""
        kind = Kind.BACKWARD
        half = (rank + 1) // 2
        for step in range(rank + 1):
            if step == half and rank % 2 == 1:
                kind = Kind.BACKWARD_INPUT
            work.add(kind, up)
            if step == half and rank % 2 == 0:
                kind = Kind.BACKWARD_INPUT
            work.add(kind, down)
        for _ in range(self.ranks - rank - 1):
            work.add_pending()
            work.add(kind, down)
        for _ in range(rank + 1):
            work.add_pending()
