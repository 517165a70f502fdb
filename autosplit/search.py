"""Search what users otherwise guess: stages, replicas, micro-batches, schedule, recomputation.

Configurations are planned and played through, those that look best first; the simulated step is
the only judge. Whatever its bound rules out is not solved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autosplit.configurations import Measured, Space, refusal
from autosplit.errors import AutosplitError, InfeasibleError, UsageError
from autosplit.planner import plan
from autosplit.types import Plan, PlanRequest, Profile
from autosplit.units import counted, format_bytes, format_seconds, format_share

_LEAST_S = 1.0
"""Time that every configuration gets that is planned."""

_KEPT = 10
"""Configurations that are planned though they cannot win: runners-up to choose from."""

_GAP = 0.01
"""Gap that is enough for runners-up; the best is planned again without."""

_EQUAL = 1e-3
"""Relative difference of steps below which one is as fast as the other."""

Outcome = Literal["planned", "impossible", "slower", "same", "late"]
"""Whether there is a plan, there is none, its bound rules it out, it is another one's (nothing
needs to be recomputed), or the time was up before."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration and how it did.

    Parameters
    ----------
    request
        The configuration.
    microbatch_size
        Rows in a micro-batch.
    plan
        Its plan; None when there is none.
    samples_per_s
        Rows of the global batch per second of simulated step; 0 without a plan.
    reason
        Why it lost; empty for the best.
    outcome
        What became of it.
    most_samples_per_s
        Rows per second that no plan of it exceeds.
    """

    request: PlanRequest
    microbatch_size: int
    plan: Plan | None
    samples_per_s: float
    reason: str = ""
    outcome: Outcome = "planned"
    most_samples_per_s: float = float("inf")

    @property
    def devices(self) -> int:
        """Devices that it uses, over all replicas."""
        return self.request.replicas * (self.request.ranks or self.request.stages)

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the fullest device, over all of its stages; 0 without a plan."""
        return max(self.plan.memory_by_rank) if self.plan else 0


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All configurations, the best first; those without a plan last.

    Parameters
    ----------
    candidates
        Each with what became of it.
    notes
        What was not tried at all, and why.
    """

    candidates: tuple[Candidate, ...]
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Plan:
        """Plan of the best configuration."""
        found = self.candidates[0].plan
        assert found is not None
        return found


def search(profiles: Sequence[Profile], request: PlanRequest, space: Space) -> SearchResult:
    """Return all ways to train a global batch on some devices, the fastest first.

    Parameters
    ----------
    profiles
        The same model at one or several batch sizes: the sizes of a micro-batch to choose from.
    request
        What stays as it is: memory, links, optimizer, wishes, limits. Its stages, micro-batches,
        schedule, ranks, replicas and, with limited memory, recomputation are searched; its time
        limit is that of the whole search.
    space
        What to choose from.

    Raises
    ------
    UsageError
        If no micro-batch divides the global batch, or no configuration has what was asked for.
    InfeasibleError
        If no configuration has a plan.
    """
    measured = [Measured(profile) for profile in profiles]
    asked = [(each, wish) for each in measured for wish in space.requests(each, request)]
    if not asked:
        raise _nothing_to_try(measured, space)
    runs = _Search(space.global_batch, request.time_limit_s, time.monotonic())
    # Good ones first: what is found early rules more out.
    asked.sort(key=lambda each: each[0].even_step_s(each[1]))
    tried = [(each, runs.tried(each, runs.bounded(each, wish))) for each, wish in asked]
    tried.sort(key=lambda each: _rank(each[1]))
    best = runs.refined(*tried[0])
    if best.plan is None:
        error = runs.errors.get((best.microbatch_size, best.request))
        if isinstance(error, UsageError):
            # The wish is at fault, not the devices.
            raise error
        if any(each.outcome == "late" for _, each in tried):
            raise AutosplitError(
                f"no plan was found in {request.time_limit_s:g} s",
                cause="not every configuration was tried",
                hint="raise --time-limit, or say more of --stages, --microbatches and --schedule",
            )
        raise InfeasibleError(
            f"no way to train a batch of {space.global_batch} on "
            f"{counted(space.devices, 'device')}",
            cause=best.reason,
            hint=(error and error.hint)
            or "give more or larger devices, or profile a smaller --batch-size",
        )
    explained = (best, *(_explained(other, best) for _, other in tried[1:]))
    return SearchResult(explained, space.notes(measured, request))


def _nothing_to_try(measured: Sequence[Measured], space: Space) -> UsageError:
    if all(space.global_batch % each.rows for each in measured):
        sizes = ", ".join(str(each.rows) for each in measured)
        return UsageError(
            f"no micro-batch divides a global batch of {space.global_batch}",
            cause=f"the profiled batch sizes are {sizes}",
            hint="profile with a --batch-size that divides it",
        )
    return UsageError(
        "no configuration has the stages and micro-batches that were asked for",
        cause=f"what there is: {counted(space.devices, 'device')} and "
        f"{counted(space.global_batch, 'row')}",
        hint="leave out --stages, --microbatches or --schedule, and they are searched",
    )


def _rank(candidate: Candidate) -> tuple[float, float, int, int]:
    """Order by speed, then by devices and memory; without a plan by what it could reach."""
    # Sums in another order differ in their last digits.
    speed = float(f"{candidate.samples_per_s:.9g}")
    most = candidate.most_samples_per_s if candidate.outcome != "impossible" else 0.0
    return -speed, -most if not speed else 0.0, candidate.devices, candidate.memory_bytes


@dataclass
class _Search:
    """A search under way: its clock, and the speeds found so far."""

    global_batch: int
    time_limit_s: float
    started: float

    def __post_init__(self) -> None:
        self.fastest: list[float] = []
        # Configurations that fit without any care for memory.
        self.roomy: set[tuple[int, PlanRequest]] = set()
        self.errors: dict[tuple[int, PlanRequest], AutosplitError] = {}

    @property
    def left_s(self) -> float:
        return self.time_limit_s - (time.monotonic() - self.started)

    def bounded(self, measured: Measured, request: PlanRequest) -> Candidate:
        """Return a configuration with what it could reach, refused where it cannot run."""
        least_s = measured.least_step_s(request)
        most = self.global_batch / least_s if least_s else float("inf")
        reason = refusal(request) or measured.lacking(request)
        outcome: Outcome = "impossible" if reason else "planned"
        return Candidate(request, measured.rows, None, 0.0, reason or "", outcome, most)

    def tried(self, measured: Measured, candidate: Candidate) -> Candidate:
        """Return a configuration with its plan, unless it cannot be among the best."""
        if candidate.outcome == "impossible":
            return candidate
        plain = (candidate.microbatch_size, replace(candidate.request, recompute="none"))
        if candidate.request.recompute == "auto" and plain in self.roomy:
            reason = "nothing needs to be recomputed: everything fits"
            return replace(candidate, outcome="same", reason=reason)
        if len(self.fastest) >= _KEPT and candidate.most_samples_per_s < self.fastest[-1]:
            return replace(candidate, outcome="slower")
        # A search that has found nothing may take as long again.
        more_s = 0.0 if self.fastest else max(_LEAST_S, self.time_limit_s)
        if self.left_s <= -more_s:
            reason = f"not tried: the {self.time_limit_s:g} s were over"
            return replace(candidate, outcome="late", reason=reason)
        limit_s, gap = max(_LEAST_S, self.left_s / _KEPT), max(_GAP, candidate.request.gap)
        found = self._roomy(measured, candidate, limit_s, gap)
        if found is None:
            found = self._planned(measured, candidate, limit_s, gap)
        if found.plan is not None:
            self.fastest = sorted((*self.fastest, found.samples_per_s), reverse=True)[:_KEPT]
        return found

    def _roomy(
        self, measured: Measured, candidate: Candidate, limit_s: float, gap: float
    ) -> Candidate | None:
        """Return a configuration with a plan for devices without a limit, where that fits too.

        It is found much sooner, and where it fits recomputation can only lose.
        """
        request = candidate.request
        if request.memory_bytes is None or request.recompute != "none" or request.cluster:
            return None
        free = replace(candidate, request=replace(request, memory_bytes=None))
        found = replace(self._planned(measured, free, limit_s, gap), request=request)
        if found.plan is None or found.memory_bytes > request.memory_bytes:
            return None
        self.roomy.add((candidate.microbatch_size, request))
        return replace(found, plan=replace(found.plan, request=request))

    def refined(self, measured: Measured, best: Candidate) -> Candidate:
        """Give the time that is left to the best plan where its proof was cut short."""
        if best.plan is None or best.plan.stopped not in ("time", "gap") or self.left_s <= 0:
            return best
        again = self._planned(measured, best, self.left_s, best.request.gap)
        return again if again.samples_per_s >= best.samples_per_s else best

    def _planned(
        self, measured: Measured, candidate: Candidate, limit_s: float, gap: float
    ) -> Candidate:
        try:
            request = replace(candidate.request, time_limit_s=limit_s, gap=gap)
            found = plan(measured.profile, request, explain=False)
        except AutosplitError as error:
            self.errors[candidate.microbatch_size, candidate.request] = error
            reason = error.message if error.cause is None else f"{error.message}: {error.cause}"
            return replace(candidate, reason=reason, outcome="impossible")
        speed = self.global_batch / found.step_s if found.step_s else 0.0
        # The plan tells what was asked for, not its share of the time.
        return replace(
            candidate, plan=replace(found, request=candidate.request), samples_per_s=speed
        )


# ---------------------------------------------------------------- why one lost


def _explained(candidate: Candidate, best: Candidate) -> Candidate:
    if candidate.outcome == "slower":
        behind = format_share(1 - candidate.most_samples_per_s / best.samples_per_s)
        words = f"at least {behind} behind, by the bound of its step"
        return replace(candidate, reason=words)
    if candidate.plan is None or best.plan is None:
        return candidate
    reason = _lost(candidate, best, candidate.plan, best.plan)
    if candidate.plan.status == "feasible":
        reason += f"; its stages may be up to {format_share(candidate.plan.gap)} better"
    return replace(candidate, reason=reason)


def _lost(candidate: Candidate, best: Candidate, plan: Plan, at_best: Plan) -> str:
    """Return what a plan loses to the best, of two as fast in devices or memory."""
    slower = plan.step_s / at_best.step_s - 1 if at_best.step_s else 0.0
    if slower < _EQUAL:
        if candidate.devices > best.devices:
            return f"as fast, on {counted(candidate.devices, 'device')} instead of {best.devices}"
        more = candidate.memory_bytes - best.memory_bytes
        return f"as fast, with {format_bytes(more)} more memory" if more > 0 else "as fast"
    spent, least = _spent(plan), _spent(at_best)
    worst = max(spent, key=lambda name: spent[name] - least[name])
    more_s = format_seconds(spent[worst] - least[worst])
    reason = f"{format_share(slower)} slower: {more_s} more {worst}"
    if worst == _COMPUTE and candidate.devices < best.devices:
        reason += f", using {candidate.devices} of {best.devices} devices"
    return reason


_COMPUTE = "compute"


def _spent(found: Plan) -> dict[str, float]:
    """Return where the seconds of a step go, summing to the step."""
    microbatches = found.request.microbatches
    ranks: dict[int, float] = {}
    for stage in found.stages:
        work = stage.forward_s + stage.backward_s
        ranks[stage.rank] = ranks.get(stage.rank, 0.0) + work
    even = sum(ranks.values()) / len(ranks)
    return {
        _COMPUTE: microbatches * even,
        "waiting for the busiest stage": microbatches * (max(ranks.values()) - even),
        "sending between stages": microbatches * max(0.0, found.bottleneck_s - max(ranks.values())),
        "summing gradients": found.sync_s,
        "filling and draining": max(
            0.0, found.step_s - found.sync_s - microbatches * found.bottleneck_s
        ),
    }
