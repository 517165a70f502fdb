"""The configurations that users otherwise guess, and how fast each could be at best."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from autosplit import graph, schedules
from autosplit.cost import LayerTimes, MemoryModel, all_reduce_s
from autosplit.devices import link_of
from autosplit.errors import UsageError
from autosplit.schedules import SCHEDULES
from autosplit.types import PlanRequest, Profile
from autosplit.units import format_bytes

WHOLE = ("1f1b", "gpipe", "interleaved")
"""Schedules that run a backward in one piece."""

SPLIT = ("zero-bubble", "zbv", "dualpipev")
"""Schedules that put the gradients of weights off, to fill the bubble."""

_CHUNKS: dict[str, tuple[int, ...]] = {"interleaved": (2, 3, 4), "zero-bubble": (1, 2)}
"""Stages on each device that are tried, where a schedule leaves the choice."""

Recompute = Literal["none", "auto", "all"]


@dataclass(frozen=True)
class Measured:
    """A profile as a choice of the search: what bounds every configuration of it."""

    profile: Profile

    @property
    def rows(self) -> int:
        """Rows of a micro-batch."""
        return self.profile.model.batch_size or 1

    @property
    def splits(self) -> bool:
        """Whether the halves of backwards were timed apart."""
        return any(layer.weight_gradient_s for layer in self.profile.layers)

    @cached_property
    def _layers(self) -> graph.Graph:
        return graph.build(self.profile)

    @cached_property
    def _times(self) -> LayerTimes:
        return LayerTimes(self._layers)

    @cached_property
    def _largest_s(self) -> float:
        return max(map(sum, zip(self._times.forward_s, self._times.backward_s, strict=True)))

    def least_step_s(self, request: PlanRequest) -> float:
        """Return a time that no simulated step of a configuration beats, whatever its plan.

        The busiest device works M micro-batches of at least an even share, or of the slowest
        layer. With one stage on each device, stage r also waits for the stages before it to fill
        and drain: T >= l_0 + ... + l_(r-1) + M l_r. All of these are tight at once for
        l_r = T / M (1 - 1/M)^r, so that work W takes T >= W / (1 - (1 - 1/M)^R).
        Gradients of replicas are summed at the end.
        """
        ranks = request.ranks or request.stages
        work = self._times.total_s
        if request.recompute == "all":
            work += math.fsum(self._times.forward_s)
        speeds = [1.0] * ranks
        if request.cluster is not None:
            fastest = sorted((device.speed for device in request.cluster.devices), reverse=True)
            speeds = fastest[:ranks]
        microbatches = request.microbatches
        step = microbatches * max(work / math.fsum(speeds), self._largest_s / max(speeds))
        if ranks == request.stages and request.schedule not in SPLIT:
            filled = 1 - (1 - 1 / microbatches) ** ranks
            step = max(step, work / max(speeds) / filled)
        return step + self._least_sync_s(request, ranks)

    def even_step_s(self, request: PlanRequest) -> float:
        """Return the step that equal loads without transfers would take.

        No bound, but near to what good plans reach: M even shares, and the pass of one
        micro-batch through the other devices, in as many parts as stages share a device. A
        schedule that puts weight gradients off does not wait for them there.
        """
        ranks = request.ranks or request.stages
        share = self._times.total_s / ranks
        waits = self._times.total_s - share
        if request.schedule in SPLIT:
            waits -= math.fsum(self._times.weight_gradient_s) * (1 - 1 / ranks)
        passing = waits * ranks / request.stages
        return request.microbatches * share + passing + self._least_sync_s(request, ranks)

    def _least_sync_s(self, request: PlanRequest, ranks: int) -> float:
        trained = sum(state.nbytes for state in self._layers.states if state.trainable)
        link = link_of(request.link_bytes_per_s, request.latency_s)
        return all_reduce_s(trained / ranks, request.replicas, (link,))

    def lacking(self, request: PlanRequest) -> str | None:
        """Return why no plan of a configuration can fit its devices; None where one may."""
        if request.memory_bytes is None or request.cluster is not None:
            return None
        ranks = request.ranks or request.stages
        shards = request.replicas if request.sharding == "fsdp" else 1
        memory = MemoryModel(self._layers, request.optimizer, shards)
        least = sum(memory.state_bytes(self._layers.states)) // ranks
        if least <= request.memory_bytes:
            return None
        return (
            f"weights, gradients and optimizer state alone fill {format_bytes(least)} of each "
            f"device, which has {format_bytes(request.memory_bytes)}"
        )


@dataclass(frozen=True, slots=True)
class Space:
    """What is searched.

    Parameters
    ----------
    devices, global_batch
        Devices at hand, and rows per step over all replicas.
    schedules
        Names to choose from; None for those that the profile has times for.
    recompute
        Ways to choose from; None for that of the request, and others where memory is limited.
    replicas
        Whether several copies of a pipeline may share the devices.
    stages, microbatches
        Numbers that were asked for; None to choose.
    """

    devices: int
    global_batch: int
    schedules: Sequence[str] | None = None
    recompute: Sequence[Recompute] | None = None
    replicas: bool = True
    stages: int | None = None
    microbatches: int | None = None

    def requests(self, measured: Measured, request: PlanRequest) -> Iterator[PlanRequest]:
        """Yield what to ask for at one size of a micro-batch."""
        for copies in self._copies(request):
            rows = copies * measured.rows
            count = self.global_batch // rows
            if self.global_batch % rows or self.microbatches not in (None, count):
                continue
            for ranks, stages, schedule in self._pipelines(measured, self.devices // copies):
                for recompute in self._recompute(measured, request):
                    yield replace(
                        request,
                        stages=stages,
                        ranks=ranks,
                        microbatches=count,
                        schedule=schedule,
                        replicas=copies,
                        recompute=recompute,
                    )

    def notes(self, measured: Sequence[Measured], request: PlanRequest) -> tuple[str, ...]:
        """Return what was left out altogether, and why."""
        return tuple(
            note
            for note in (
                self._undivided(measured, request),
                self._unsplit(measured),
                self._alone(request),
            )
            if note
        )

    # ------------------------------------------------------------ choices

    def _copies(self, request: PlanRequest) -> range:
        alike = request.cluster is None
        return range(1, self.devices + 1 if self.replicas and alike else 2)

    def _pipelines(self, measured: Measured, most: int) -> Iterator[tuple[int, int, str]]:
        """Yield devices, stages and schedule of one pipeline; one stage needs no schedule."""
        names = self._schedules(measured)
        for ranks in _rank_counts(most):
            for name in names if ranks > 1 else names[:1]:
                usual = SCHEDULES[name].default_stages(1)
                for chunks in _CHUNKS.get(name, (usual,)) if ranks > 1 else (1,):
                    stages = ranks * chunks
                    fits = stages <= len(measured.profile.layers)
                    if fits and self.stages in (None, stages):
                        yield ranks, stages, name

    def _schedules(self, measured: Measured) -> Sequence[str]:
        if self.schedules is not None:
            return self.schedules
        if not measured.profile.training:
            return tuple(name for name in WHOLE if name != "gpipe")
        return (*WHOLE, *SPLIT) if measured.splits else WHOLE

    def _recompute(self, measured: Measured, request: PlanRequest) -> Sequence[Recompute]:
        if self.recompute is not None:
            return self.recompute
        limited = request.memory_bytes is not None or request.cluster is not None
        if limited and measured.profile.training:
            return ("none", "auto")
        return (request.recompute,)

    # ------------------------------------------------------------ what is left out

    def _undivided(self, measured: Sequence[Measured], request: PlanRequest) -> str | None:
        """Tell of copies among which the rows of a step cannot be dealt out."""
        odd = [
            copies
            for copies in self._copies(request)
            if all(self.global_batch % (copies * each.rows) for each in measured)
        ]
        if not odd:
            return None
        sizes = " or ".join(str(each.rows) for each in measured)
        return (
            f"not tried: {_listed(odd)} replicas, which cannot share {self.global_batch} rows "
            f"in micro-batches of {sizes}"
        )

    def _unsplit(self, measured: Sequence[Measured]) -> str | None:
        training = any(each.profile.training for each in measured)
        if self.schedules is not None or not training or any(each.splits for each in measured):
            return None
        return (
            f"not tried: {_listed(SPLIT)}, since the profile does not time the gradients of "
            "weights apart"
        )

    def _alone(self, request: PlanRequest) -> str | None:
        if self.replicas and request.cluster is None:
            return None
        why = "" if request.cluster is None else ", which are for devices that are all alike"
        return f"not tried: replicas{why}"


def refusal(request: PlanRequest) -> str | None:
    """Return why a schedule cannot run a configuration; None where it can."""
    try:
        schedules.make(request.schedule, request.stages, request.microbatches, request.ranks)
    except UsageError as error:
        return f"{request.schedule}: {error.cause or error.message}"
    return None


def _rank_counts(most: int) -> list[int]:
    """Return how many devices one pipeline may have: all there are, and powers of two."""
    return sorted({most, *(2**power for power in range(most.bit_length()))} & set(range(most + 1)))


def _listed(items: Sequence[object]) -> str:
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last
