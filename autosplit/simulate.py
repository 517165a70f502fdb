"""A training step played through, event by event, in the true order of its schedule.

Each rank runs its actions in order. An action starts when its rank is free and what it needs has
arrived. A transfer either occupies the link alone (``overlap``) or both ranks, as a runtime does
that copies on the processor that computes: the sender from the moment the value is ready, the
receiver before it computes, both at the same time where both are waiting.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from autosplit.cost import CostModel, PlanCost
from autosplit.schedules import Action, Kind, Schedule

EventKind = Literal["forward", "backward", "weight", "send", "receive", "sync"]

_EVENT: dict[Kind, EventKind] = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward",
    Kind.BACKWARD_WEIGHT: "weight",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that occupies a rank, or with overlap the link that leaves it.

    Parameters
    ----------
    rank
        Rank that works; for a transfer beside compute, the sender.
    kind
        What it does.
    stage, microbatch
        For which stage (a transfer: the one it leaves or reaches) and micro-batch.
    start_s, end_s
        Seconds since the step began.
    on_link
        Whether it runs beside the compute of its rank.
    """

    rank: int
    kind: EventKind
    stage: int
    microbatch: int
    start_s: float
    end_s: float
    on_link: bool = False


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a step looks like.

    Parameters
    ----------
    step_s
        From the first forward to the end of the last event.
    busy_s
        Seconds in which each rank computes.
    events
        In order of their start.
    in_flight
        Most micro-batches that each stage holds at once.
    peak_activation_bytes
        Most bytes of activations that each rank holds at once.
    memory
        Of each rank, ``(time_s, bytes)`` of activations from that time on, in order.
    static_bytes
        Bytes that each rank holds all the time: state, buffers and workspace.
    """

    step_s: float
    busy_s: tuple[float, ...]
    events: tuple[Event, ...]
    in_flight: tuple[int, ...]
    peak_activation_bytes: tuple[int, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...]
    static_bytes: tuple[int, ...]

    def idle(self, rank: int) -> float:
        """Return the share of the step in which a rank does not compute."""
        return max(0.0, 1 - self.busy_s[rank] / self.step_s) if self.step_s else 0.0


def play(model: CostModel, cost: PlanCost) -> Timeline:
    """Return the step of a plan under the schedule and links of its cost model."""
    return simulate(cost, model.schedule, training=model.graph.training, overlap=model.overlap)


def simulate(
    cost: PlanCost,
    schedule: Schedule,
    *,
    training: bool = True,
    overlap: bool = False,
) -> Timeline:
    """Play one step and return its timeline.

    Parameters
    ----------
    cost
        Times of the stages and boundaries.
    schedule
        Order of work.
    training
        Whether there are backward passes.
    overlap
        Whether transfers run beside compute.
    """
    player = _Player(cost, schedule, training, overlap)
    player.play()
    return player.timeline()


@dataclass
class _Player:
    cost: PlanCost
    schedule: Schedule
    training: bool
    overlap: bool
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = self.schedule.ranks
        self.free = [0.0] * ranks
        self.link_free: dict[tuple[int, int], float] = defaultdict(float)
        # (kind, stage, microbatch) -> (time at which the input is there, receive seconds)
        self.arrived: dict[tuple[Kind, int, int], tuple[float, float]] = {}
        self.held = [0] * self.schedule.stages
        self.peak = [0] * self.schedule.stages
        self.held_bytes = [0] * ranks
        self.memory: list[list[tuple[float, int]]] = [[(0.0, 0)] for _ in range(ranks)]

    def play(self) -> None:
        """Run every rank as far as its inputs have arrived, until all are done."""
        orders = [self._actions(rank) for rank in range(self.schedule.ranks)]
        following = [next(order, None) for order in orders]
        while any(following):
            moved = False
            for rank, order in enumerate(orders):
                while (action := following[rank]) is not None and self._ready(action):
                    self._run(rank, action)
                    following[rank] = next(order, None)
                    moved = True
            if not moved:
                raise AssertionError(f"schedule {self.schedule.name} waits for itself")

    def timeline(self) -> Timeline:
        """Return what was played, the sum of shared gradients at its end."""
        end = max((event.end_s for event in self.events), default=0.0)
        if self.training and self.cost.sync_s:
            for rank in range(self.schedule.ranks):
                self.events.append(Event(rank, "sync", 0, 0, end, end + self.cost.sync_s))
            end += self.cost.sync_s
        busy: list[list[float]] = [[] for _ in range(self.schedule.ranks)]
        for event in self.events:
            if event.kind in ("forward", "backward", "weight"):
                busy[event.rank].append(event.end_s - event.start_s)
        return Timeline(
            step_s=end,
            busy_s=tuple(math.fsum(times) for times in busy),
            events=tuple(sorted(self.events, key=lambda e: (e.start_s, e.end_s, e.rank))),
            in_flight=tuple(self.peak),
            peak_activation_bytes=tuple(max(held for _, held in each) for each in self.memory),
            memory=tuple(map(tuple, self.memory)),
            static_bytes=self._static_bytes(),
        )

    def _static_bytes(self) -> tuple[int, ...]:
        held = [0] * self.schedule.ranks
        for index, stage in enumerate(self.cost.stages):
            static = stage.memory.total_bytes - stage.memory.activations_bytes
            held[self.schedule.rank_of(index)] += static
        return tuple(held)

    def _actions(self, rank: int) -> Iterator[Action]:
        return (
            action
            for action in self.schedule.order[rank]
            if self.training or action.kind is Kind.FORWARD
        )

    def _ready(self, action: Action) -> bool:
        return self._source(action) is None or self._key(action) in self.arrived

    def _source(self, action: Action) -> int | None:
        """Return the stage from which an action needs something, if any."""
        if action.kind is Kind.FORWARD:
            return action.stage - 1 if action.stage else None
        if action.kind is Kind.BACKWARD_WEIGHT:
            return None
        return action.stage + 1 if action.stage + 1 < self.schedule.stages else None

    def _key(self, action: Action) -> tuple[Kind, int, int]:
        kind = Kind.FORWARD if action.kind is Kind.FORWARD else Kind.BACKWARD
        return kind, action.stage, action.microbatch

    def _run(self, rank: int, action: Action) -> None:
        start = self._receive(rank, action)
        end = start + self._seconds(action)
        self._record(rank, _EVENT[action.kind], action, start, end)
        self.free[rank] = end
        if self.training:
            self._count(rank, action, start, end)
        if action.kind is not Kind.BACKWARD_WEIGHT:
            self._send(rank, action, end)

    def _seconds(self, action: Action) -> float:
        stage = self.cost.stages[action.stage]
        return {
            Kind.FORWARD: stage.forward_s,
            Kind.BACKWARD: stage.backward_s,
            Kind.BACKWARD_INPUT: stage.backward_s - stage.weight_gradient_s,
            Kind.BACKWARD_WEIGHT: stage.weight_gradient_s,
        }[action.kind]

    def _receive(self, rank: int, action: Action) -> float:
        """Return when an action can start, its rank having received what it needs."""
        if self._source(action) is None:
            return self.free[rank]
        sent, seconds = self.arrived.pop(self._key(action))
        if self.overlap or not seconds:
            return max(self.free[rank], sent + seconds)
        begin = max(self.free[rank], sent)
        self._record(rank, "receive", action, begin, begin + seconds)
        return begin + seconds

    def _send(self, rank: int, action: Action, end: float) -> None:
        """Pass on what an action made; ``arrived`` holds when its transfer begins."""
        forward = action.kind is Kind.FORWARD
        target = action.stage + (1 if forward else -1)
        if not 0 <= target < self.schedule.stages:
            return
        boundary = self.cost.boundaries[min(action.stage, target)]
        seconds = boundary.forward_s if forward else boundary.backward_s
        begin = end
        if seconds and self.overlap:
            link = (rank, self.schedule.rank_of(target))
            begin = max(end, self.link_free[link])
            self.link_free[link] = begin + seconds
            self._record(rank, "send", action, begin, begin + seconds, on_link=True)
        elif seconds:
            self._record(rank, "send", action, end, end + seconds)
            self.free[rank] = end + seconds
        kind = Kind.FORWARD if forward else Kind.BACKWARD
        self.arrived[kind, target, action.microbatch] = (begin, seconds)

    def _count(self, rank: int, action: Action, start: float, end: float) -> None:
        """Follow what stages hold: from the start of the forward to the end of the backward."""
        if action.kind is Kind.BACKWARD_INPUT:
            return
        forward = action.kind is Kind.FORWARD
        change = 1 if forward else -1
        self.held[action.stage] += change
        self.peak[action.stage] = max(self.peak[action.stage], self.held[action.stage])
        self.held_bytes[rank] += change * self.cost.stages[action.stage].activation_bytes
        self.memory[rank].append((start if forward else end, self.held_bytes[rank]))

    def _record(
        self,
        rank: int,
        kind: EventKind,
        action: Action,
        start: float,
        end: float,
        *,
        on_link: bool = False,
    ) -> None:
        self.events.append(Event(rank, kind, action.stage, action.microbatch, start, end, on_link))
