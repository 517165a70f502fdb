"""What a plan costs: times, transfers and memory of every stage."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autosplit.cost.memory import MemoryModel
from autosplit.cost.times import LayerTimes
from autosplit.graph import Graph, Value
from autosplit.schedules import Schedule
from autosplit.solvers.base import Link
from autosplit.types import StageMemory


@dataclass(frozen=True, slots=True)
class BoundaryCost:
    """What crosses one boundary per micro-batch.

    Parameters
    ----------
    values
        Names of the values alive across it, in the order of the profile.
    forward_bytes, backward_bytes
        Bytes of the values, and of the gradients that come back.
    forward_s, backward_s
        Seconds on the link.
    """

    values: tuple[str, ...] = ()
    forward_bytes: int = 0
    backward_bytes: int = 0
    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds on the link, both ways."""
        return self.forward_s + self.backward_s


@dataclass(frozen=True, slots=True)
class StageCost:
    """What one stage costs per micro-batch, and its peak memory.

    Parameters
    ----------
    layers
        Indices of its layers, ascending.
    forward_s, backward_s
        Compute time; recomputation counts as backward.
    load_s
        Time with transfers, added or overlapped.
    activation_bytes
        Bytes held for each micro-batch in flight.
    memory
        Peak memory.
    weight_gradient_s
        Part of ``backward_s`` that no other stage waits for: gradients of its parameters.
    """

    layers: tuple[int, ...]
    forward_s: float
    backward_s: float
    load_s: float
    activation_bytes: int
    memory: StageMemory
    weight_gradient_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What an assignment of layers to stages costs.

    Parameters
    ----------
    stages, boundaries
        In pipeline order.
    sync_s
        Seconds at the end of a step in which gradients are summed: those of parameters on
        several stages, and those of replicas.
    bottleneck_s
        Load of the busiest rank per micro-batch.
    objective_s
        What was to be minimised.
    """

    stages: tuple[StageCost, ...]
    boundaries: tuple[BoundaryCost, ...]
    sync_s: float
    bottleneck_s: float
    objective_s: float


@dataclass(frozen=True)
class Place:
    """The device of a stage.

    Parameters
    ----------
    speed
        Divides the measured times.
    budget_bytes
        Its memory; infinite for no limit.
    name
        Name in the cluster; None where devices are all alike.
    times
        Times measured on such a device; None for those of the model's own graph.
    """

    speed: float = 1.0
    budget_bytes: float = math.inf
    name: str | None = None
    times: LayerTimes | None = None


@dataclass(frozen=True)
class CostModel:
    """Costs of the stages of one graph under one schedule on given devices.

    Parameters
    ----------
    graph, schedule
        What runs, and in which order.
    optimizer
        Name in ``OPTIMIZER_COPIES``.
    places
        Device of each stage.
    links
        Link of each boundary; a boundary inside one rank is free whatever stands here.
    overlap
        Whether transfers run beside compute.
    objective
        "bottleneck" or "step", as in ``ChainProblem``.
    replicas, replica_link
        Copies of the pipeline that train on other data and sum their gradients after a step,
        and the link between them.
    divided
        Whether replicas divide parameters and optimizer state (FSDP). What they gather and
        reduce in a step is as much as they would sum.
    """

    graph: Graph
    schedule: Schedule
    optimizer: str
    places: tuple[Place, ...]
    links: tuple[Link, ...]
    overlap: bool = False
    objective: Literal["bottleneck", "step"] = "step"
    replicas: int = 1
    replica_link: Link = Link()  # noqa: RUF009 (frozen)
    divided: bool = False

    @cached_property
    def times(self) -> LayerTimes:
        """Times of the layers on the measured device."""
        return LayerTimes(self.graph)

    @cached_property
    def memory(self) -> MemoryModel:
        """What layers hold."""
        return MemoryModel(self.graph, self.optimizer, self.replicas if self.divided else 1)

    @property
    def bounded(self) -> bool:
        """Whether any device has a limit."""
        return any(math.isfinite(place.budget_bytes) for place in self.places)

    @cached_property
    def single_s(self) -> float:
        """Seconds of one micro-batch on the fastest device alone."""
        return min((place.times or self.times).total_s / place.speed for place in self.places)

    def same_rank(self, boundary: int) -> bool:
        """Return whether both sides of a boundary run on one rank."""
        return self.schedule.rank_of(boundary) == self.schedule.rank_of(boundary + 1)

    # ------------------------------------------------------------ plans

    def evaluate(self, stage_of: Sequence[int], recompute: Collection[int] = ()) -> PlanCost:
        """Return what a plan costs.

        Parameters
        ----------
        stage_of
            Stage of each layer.
        recompute
            Layers whose activations are computed again in backward.
        """
        count = self.schedule.stages
        members: list[list[int]] = [[] for _ in range(count)]
        for layer, stage in enumerate(stage_of):
            members[stage].append(layer)
        # What crosses each boundary, and behind the last stage what the model returns.
        crossing = self._crossing(stage_of)
        boundaries = tuple(self._boundary(index, crossing[index]) for index in range(count - 1))
        around = (BoundaryCost(), *boundaries, BoundaryCost())
        states = self.memory.states_by_stage(stage_of, count)
        stages = []
        for stage, layers in enumerate(members):
            forward, backward = self._stage_s(stage, layers, recompute)
            before, after = around[stage], around[stage + 1]
            received = crossing[stage - 1] if stage else []
            kept = self.memory.activation_bytes(layers, recompute, received, crossing[stage])
            activations = self.schedule.in_flight[stage] * kept
            parameters, gradients, optimizer = self.memory.state_bytes(states[stage])
            stages.append(
                StageCost(
                    layers=tuple(layers),
                    forward_s=forward,
                    backward_s=backward,
                    load_s=self._load(forward + backward, before.total_s, after.total_s),
                    activation_bytes=kept,
                    memory=StageMemory(
                        parameters_bytes=parameters,
                        gradients_bytes=gradients,
                        optimizer_bytes=optimizer,
                        activations_bytes=activations,
                        boundary_bytes=self._buffer_bytes(stage, layers, before, after),
                        workspace_bytes=self.memory.transient_bytes(
                            layers, recompute, states[stage], activations
                        ),
                    ),
                    weight_gradient_s=min(backward, self._weight_gradient_s(stage, layers)),
                )
            )
        bottleneck, objective = self.objective_of([stage.load_s for stage in stages])
        sync_s = self._sync_s(stage_of) + self._replica_sync_s(stages)
        return PlanCost(tuple(stages), boundaries, sync_s, bottleneck, objective)

    def objective_of(self, loads: Sequence[float]) -> tuple[float, float]:
        """Return the load of the busiest rank, and the objective, for the loads of stages.

        The step is (M - 1) bottlenecks and one pass through all stages; with several stages on
        each rank the pass takes only one of a rank's stages at a time.
        """
        ranks = [0.0] * self.schedule.ranks
        for stage, load in enumerate(loads):
            ranks[self.schedule.rank_of(stage)] += load
        bottleneck = max(ranks)
        if self.objective == "bottleneck":
            return bottleneck, bottleneck
        passing = math.fsum(loads) / self.schedule.chunks
        return bottleneck, (self.schedule.microbatches - 1) * bottleneck + passing

    def even_bound_s(self) -> float:
        """Return the objective if all ranks had equal loads and transfers were free.

        No plan is better: a sum of loads is at least the work, the largest at least its share,
        and at least the longest layer with the entries of its rank. Of more places than stages
        any may be taken.
        """
        chunks = self.schedule.chunks
        speeds = sorted((each.speed for each in self.places), reverse=True)[: self.schedule.stages]
        kinds = {id(times): times for times in (each.times or self.times for each in self.places)}
        passes = [zip(each.forward_s, each.backward_s, strict=True) for each in kinds.values()]
        layers = [min(map(sum, each)) for each in zip(*passes, strict=True)]
        entry = min(math.fsum(times.entry_s) for times in kinds.values())
        work = math.fsum(layers) + self.schedule.stages * entry
        longest = (max(layers) + chunks * entry) / max(speeds)
        largest = max(work * chunks / math.fsum(speeds), longest)
        if self.objective == "bottleneck":
            return largest
        return (self.schedule.microbatches - 1) * largest + work / max(speeds) / chunks

    def rank_bytes(self, cost: PlanCost) -> tuple[int, ...]:
        """Return the peak memory of each rank: the sum over its stages."""
        used = [0] * self.schedule.ranks
        for stage, found in enumerate(cost.stages):
            used[self.schedule.rank_of(stage)] += found.memory.total_bytes
        return tuple(used)

    def rank_excess(self, cost: PlanCost) -> tuple[float, ...]:
        """Return the bytes by which each rank exceeds its device."""
        budget = {self.schedule.rank_of(s): p.budget_bytes for s, p in enumerate(self.places)}
        used = self.rank_bytes(cost)
        return tuple(max(0.0, nbytes - budget[rank]) for rank, nbytes in enumerate(used))

    def _load(self, work: float, before: float, after: float) -> float:
        return max(work, before, after) if self.overlap else work + before + after

    def _stage_s(
        self, stage: int, layers: list[int], recompute: Collection[int]
    ) -> tuple[float, float]:
        place = self.places[stage]
        times = place.times or self.times
        forward, backward = times.entry_s if layers else (0.0, 0.0)
        forward += math.fsum(times.forward_s[layer] for layer in layers)
        backward += math.fsum(times.backward_s[layer] for layer in layers)
        backward += math.fsum(times.forward_s[layer] for layer in layers if layer in recompute)
        return forward / place.speed, backward / place.speed

    def _weight_gradient_s(self, stage: int, layers: Iterable[int]) -> float:
        place = self.places[stage]
        times = place.times or self.times
        return math.fsum(times.weight_gradient_s[layer] for layer in layers) / place.speed

    # ------------------------------------------------------------ boundaries

    def _crossing(self, stage_of: Sequence[int]) -> list[list[Value]]:
        last = self.schedule.stages - 1
        alive: list[list[Value]] = [[] for _ in range(last + 1)]
        for value in self.graph.values:
            if value.producer is None:
                continue
            end = max((stage_of[layer] for layer in value.receivers), default=0)
            for boundary in range(stage_of[value.producer], last + 1 if value.output else end):
                alive[boundary].append(value)
        return alive

    def _boundary(self, index: int, values: list[Value]) -> BoundaryCost:
        returned = [value for value in values if value.needs_grad]
        forward_bytes = sum(value.nbytes for value in values)
        backward_bytes = sum(value.nbytes for value in returned)
        link = Link() if self.same_rank(index) else self.links[index]
        return BoundaryCost(
            values=tuple(value.name for value in values),
            forward_bytes=forward_bytes,
            backward_bytes=backward_bytes,
            forward_s=forward_bytes * link.s_per_byte + len(values) * link.latency_s,
            backward_s=backward_bytes * link.s_per_byte + len(returned) * link.latency_s,
        )

    def _buffer_bytes(
        self, stage: int, layers: list[int], before: BoundaryCost, after: BoundaryCost
    ) -> int:
        """Return the bytes of inputs and receive buffers, one for every micro-batch."""
        buffers = self.memory.input_bytes(layers)
        if stage and not self.same_rank(stage - 1):
            buffers += before.forward_bytes
        if stage + 1 < self.schedule.stages and not self.same_rank(stage):
            buffers += after.backward_bytes
        return self.schedule.microbatches * buffers

    def _sync_s(self, stage_of: Sequence[int]) -> float:
        """Return the seconds in which gradients of parameters on several ranks are summed."""
        total = 0.0
        for state in self.graph.states:
            ranks = {self.schedule.rank_of(stage_of[layer]) for layer in state.layers}
            if state.trainable:
                total += self._all_reduce_s(state.nbytes, len(ranks))
        return total

    def _replica_sync_s(self, stages: Sequence[StageCost]) -> float:
        """Return the seconds in which the busiest rank sums its gradients over replicas."""
        gradients = [0] * self.schedule.ranks
        for stage, found in enumerate(stages):
            gradients[self.schedule.rank_of(stage)] += found.memory.gradients_bytes
        return self._all_reduce_s(max(gradients), self.replicas)

    def _all_reduce_s(self, nbytes: int, members: int) -> float:
        return all_reduce_s(nbytes, members, (*self.links, self.replica_link))


def all_reduce_s(nbytes: float, members: int, links: Sequence[Link]) -> float:
    """Return the seconds of an all-reduce over a ring with the slowest of some links.

    Over n members it moves 2 (n - 1) / n of the bytes over each link.
    """
    if members < 2 or not nbytes:
        return 0.0
    slowest = max(link.s_per_byte for link in links)
    latency = max(link.latency_s for link in links)
    return 2 * (members - 1) * (nbytes / members * slowest + latency)
