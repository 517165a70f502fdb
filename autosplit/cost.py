"""What a stage costs: its time, what crosses its boundaries, and its peak memory.

The only place that knows. Solvers get these numbers through ``chain.problem``; every plan, by
whomever it was found, is judged by ``CostModel.evaluate``.

Time of a stage is the sum over its layers less what entering each layer alone has cost the
measurement: ``sum - (layers - 1) * offset``. What crosses a boundary is every value alive across
it, once (model inputs are looked up by each rank and never cross), and its gradient back.

Memory of a stage is its state, gradients and optimizer state, the activations of the
micro-batches in flight, the buffers in which the runtime receives every micro-batch of a step,
and the largest workspace of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from autosplit.graph import Graph, State, Value
from autosplit.schedules import Schedule
from autosplit.solvers.base import Link
from autosplit.types import StageMemory

OPTIMIZER_COPIES: dict[str, int] = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 1,
    "rmsprop": 1,
    "adam": 2,
    "adamw": 2,
}
"""Tensors of the size of each trained parameter that an optimizer keeps."""


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
    """

    layers: tuple[int, ...]
    forward_s: float
    backward_s: float
    load_s: float
    activation_bytes: int
    memory: StageMemory


@dataclass(frozen=True, slots=True)
class PlanCost:
    """What an assignment of layers to stages costs.

    Parameters
    ----------
    stages, boundaries
        In pipeline order.
    sync_s
        Seconds at the end of a step in which gradients of shared parameters are summed.
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
class CostModel:
    """Costs of the stages of one graph under one schedule on given devices.

    Parameters
    ----------
    graph, schedule
        What runs, and in which order.
    optimizer
        Name in ``OPTIMIZER_COPIES``.
    speeds, budgets_bytes
        Relative speed and memory (infinite for no limit) of the device of each stage.
    links
        Link of each boundary; a boundary inside one rank is free whatever stands here.
    overlap
        Whether transfers run beside compute.
    objective
        "bottleneck" or "step", as in ``ChainProblem``.
    """

    graph: Graph
    schedule: Schedule
    optimizer: str
    speeds: tuple[float, ...]
    budgets_bytes: tuple[float, ...]
    links: tuple[Link, ...]
    overlap: bool = False
    objective: Literal["bottleneck", "step"] = "step"

    # ------------------------------------------------------------ layers

    @cached_property
    def forward_s(self) -> tuple[float, ...]:
        """Forward seconds of each layer inside a stage, on a device of speed 1."""
        return self._inside([layer.forward.median_s for layer in self.graph.layers])

    @cached_property
    def backward_s(self) -> tuple[float, ...]:
        """Backward seconds of each layer inside a stage, on a device of speed 1."""
        return self._inside(self._backward_alone)

    @cached_property
    def entry_s(self) -> tuple[float, float]:
        """Forward and backward seconds of entering a stage."""
        forward = math.fsum(layer.forward.median_s for layer in self.graph.layers)
        total = forward + math.fsum(self._backward_alone)
        share = forward / total if total else 0.0
        return share * self.graph.offset_s, (1 - share) * self.graph.offset_s

    @cached_property
    def saved_bytes(self) -> tuple[int, ...]:
        """Bytes that backward keeps of what each layer makes, per micro-batch."""
        charged = [0] * len(self.graph)
        for storage, owner in self.owner.items():
            charged[owner] += self.graph.storage_bytes[storage]
        return tuple(charged)

    @cached_property
    def single_s(self) -> float:
        """Seconds of one micro-batch on one device of speed 1, without a pipeline."""
        return math.fsum((*self.forward_s, *self.backward_s, *self.entry_s))

    @property
    def _backward_alone(self) -> list[float]:
        if not self.graph.training:
            return [0.0] * len(self.graph)
        return [layer.backward.median_s for layer in self.graph.layers]

    def _inside(self, alone: list[float]) -> tuple[float, ...]:
        """Take the cost of entering a layer from its time, in proportion to both passes."""
        backward = self._backward_alone
        result = []
        for layer, part, back in zip(self.graph.layers, alone, backward, strict=True):
            total = layer.forward.median_s + back
            kept = max(0.0, total - self.graph.offset_s) / total if total else 0.0
            result.append(part * kept)
        return tuple(result)

    @cached_property
    def owner(self) -> dict[int, int]:
        """Layer that is charged for each saved storage; storages of model inputs have none.

        It is the layer that makes the memory: a stage that reads it from elsewhere holds its
        own copy in a receive buffer.
        """
        makers: dict[int, int] = {}
        inputs: set[int] = set()
        for value in self.graph.values:
            if value.storage is None:
                continue
            if value.producer is None:
                inputs.add(value.storage)
            else:
                makers[value.storage] = min(
                    value.producer, makers.get(value.storage, value.producer)
                )
        owner: dict[int, int] = {}
        for index, layer in enumerate(self.graph.layers):
            for storage in layer.saved:
                if storage not in inputs:
                    owner.setdefault(storage, makers.get(storage, index))
        return owner

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
        crossing = self._crossing(stage_of)
        boundaries = tuple(self._boundary(index, crossing[index]) for index in range(count - 1))
        around = (BoundaryCost(), *boundaries, BoundaryCost())
        states = self._states_by_stage(stage_of)
        stages = []
        for stage, layers in enumerate(members):
            forward, backward = self._times(stage, layers, recompute)
            before, after = around[stage], around[stage + 1]
            kept = self._activation_bytes(stage, layers, crossing, stage_of, recompute)
            stages.append(
                StageCost(
                    layers=tuple(layers),
                    forward_s=forward,
                    backward_s=backward,
                    load_s=self._load(forward + backward, before.total_s, after.total_s),
                    activation_bytes=kept,
                    memory=self._memory(
                        stage, layers, states[stage], kept, before, after, recompute
                    ),
                )
            )
        bottleneck, objective = self.objective_of([stage.load_s for stage in stages])
        sync_s = self._sync_s(stage_of)
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

    def even_bound_s(self, share_s: float) -> float:
        """Return what the objective would be if every rank had the same load, all compute."""
        if self.objective == "bottleneck":
            return share_s
        steps = self.schedule.microbatches - 1
        return steps * share_s + self.schedule.ranks * share_s / self.schedule.chunks

    def least_bytes(self, layer: int, in_flight: int) -> int:
        """Return what a stage of this layer alone needs, transfers and inputs left out."""
        states = [state for state in self.graph.states if layer in state.layers]
        alone = self._memory(0, [layer], states, 0, BoundaryCost(), BoundaryCost(), ())
        return alone.total_bytes - alone.boundary_bytes + in_flight * self.saved_bytes[layer]

    def rank_memory(self, cost: PlanCost) -> tuple[int, ...]:
        """Return the peak memory of each rank: the sum over its stages."""
        totals = [0] * self.schedule.ranks
        for stage, stage_cost in enumerate(cost.stages):
            totals[self.schedule.rank_of(stage)] += stage_cost.memory.total_bytes
        return tuple(totals)

    def _load(self, work: float, before: float, after: float) -> float:
        return max(work, before, after) if self.overlap else work + before + after

    def _times(
        self, stage: int, layers: list[int], recompute: Collection[int]
    ) -> tuple[float, float]:
        forward, backward = self.entry_s if layers else (0.0, 0.0)
        forward += math.fsum(self.forward_s[layer] for layer in layers)
        backward += math.fsum(self.backward_s[layer] for layer in layers)
        backward += math.fsum(self.forward_s[layer] for layer in layers if layer in recompute)
        return forward / self.speeds[stage], backward / self.speeds[stage]

    # ------------------------------------------------------------ boundaries

    def _crossing(self, stage_of: Sequence[int]) -> list[list[Value]]:
        """Return the values alive across each boundary, the way out behind the last one."""
        last = self.schedule.stages - 1
        alive: list[list[Value]] = [[] for _ in range(last + 1)]
        for value in self.graph.values:
            if value.producer is None:
                continue
            end = max((stage_of[layer] for layer in value.consumers), default=0)
            for boundary in range(stage_of[value.producer], last if value.output else end):
                alive[boundary].append(value)
            if value.output:
                alive[last].append(value)
        return alive

    def same_rank(self, boundary: int) -> bool:
        """Return whether both sides of a boundary run on one rank."""
        return self.schedule.rank_of(boundary) == self.schedule.rank_of(boundary + 1)

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

    def _sync_s(self, stage_of: Sequence[int]) -> float:
        """Seconds in which gradients of parameters on several ranks are summed after a step.

        A ring over n ranks moves 2 (n - 1) / n of the bytes over each link.
        """
        total = 0.0
        slowest = max((link.s_per_byte for link in self.links), default=0.0)
        latency = max((link.latency_s for link in self.links), default=0.0)
        for state in self.graph.states:
            ranks = {self.schedule.rank_of(stage_of[layer]) for layer in state.layers}
            if state.trainable and len(ranks) > 1:
                steps = 2 * (len(ranks) - 1)
                total += steps * (state.nbytes / len(ranks) * slowest + latency)
        return total

    # ------------------------------------------------------------ memory

    def _states_by_stage(self, stage_of: Sequence[int]) -> list[list[State]]:
        """Return the states each stage holds; what no layer uses is carried by stage 0."""
        held: list[list[State]] = [[] for _ in range(self.schedule.stages)]
        for state in self.graph.states:
            for stage in sorted({stage_of[layer] for layer in state.layers} or {0}):
                held[stage].append(state)
        return held

    def _activation_bytes(
        self,
        stage: int,
        layers: list[int],
        crossing: list[list[Value]],
        stage_of: Sequence[int],
        recompute: Collection[int],
    ) -> int:
        """Return the bytes that a stage keeps for each micro-batch in flight.

        That is the union of the storages its layers save, what it has sent (torch keeps it
        until backward), and a copy of what it hands on from an earlier stage. What it has
        received lies in receive buffers and is counted there.
        """
        if not self.graph.training:
            return 0
        own = {layer for layer in layers if layer not in recompute}
        again = {layer for layer in layers if layer in recompute}
        received = {value.storage for value in crossing[stage - 1]} if stage else set()
        kept = {
            storage
            for layer in own
            for storage in self.graph.layers[layer].saved
            if storage in self.owner and storage not in received
        }
        loose = 0
        for value in self.graph.values:
            made_here = value.producer is not None and stage_of[value.producer] == stage
            if made_here and again.intersection(value.consumers):
                loose += self._keep(value, kept)
        for value in crossing[stage]:
            if value.producer is not None and stage_of[value.producer] == stage:
                loose += self._keep(value, kept)
            else:
                loose += value.nbytes
        return loose + sum(self.graph.storage_bytes[storage] for storage in kept)

    def _keep(self, value: Value, kept: set[int]) -> int:
        """Add the storage of a value to ``kept``, or return its bytes when it has none."""
        if value.storage in self.owner:
            kept.add(value.storage)
            return 0
        return value.nbytes

    def _memory(
        self,
        stage: int,
        layers: list[int],
        states: list[State],
        activation_bytes: int,
        before: BoundaryCost,
        after: BoundaryCost,
        recompute: Collection[int],
    ) -> StageMemory:
        microbatches = self.schedule.microbatches
        trained = sum(state.nbytes for state in states if state.trainable)
        members = set(layers)
        buffers = sum(
            value.nbytes
            for value in self.graph.values
            if value.producer is None and members.intersection(value.consumers)
        )
        if stage and not self.same_rank(stage - 1):
            buffers += before.forward_bytes
        if stage + 1 < self.schedule.stages and not self.same_rank(stage):
            buffers += after.backward_bytes
        return StageMemory(
            parameters_bytes=sum(state.nbytes for state in states),
            gradients_bytes=trained,
            optimizer_bytes=trained * OPTIMIZER_COPIES[self.optimizer],
            activations_bytes=self.schedule.in_flight[stage] * activation_bytes,
            boundary_bytes=microbatches * buffers,
            workspace_bytes=max(
                (self._workspace_bytes(layer, layer in recompute) for layer in layers), default=0
            ),
        )

    def _workspace_bytes(self, layer: int, again: bool) -> int:
        """Return the transient memory of a layer; recomputed, its activations come on top."""
        return self.graph.layers[layer].workspace_bytes + again * self.saved_bytes[layer]
