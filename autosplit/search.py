"""Search what users otherwise guess: stages, replicas, micro-batches, schedule.

Every configuration is planned and played through; the simulated step is the only judge.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autosplit.errors import AutosplitError, InfeasibleError, UsageError
from autosplit.planner import plan
from autosplit.types import Plan, PlanRequest, Profile
from autosplit.units import format_share

_LEAST_S = 1.0
"""Time that every configuration gets, however many there are."""

SEARCHED = ("gpipe", "1f1b", "interleaved")
"""Schedules that are tried: those that run any stage as it is.

Those with a split backward gain only where the profile knows its two halves apart.
"""


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
    """

    request: PlanRequest
    microbatch_size: int
    plan: Plan | None
    samples_per_s: float
    reason: str = ""

    @property
    def memory_bytes(self) -> int:
        """Peak memory of the fullest rank; 0 without a plan."""
        if self.plan is None:
            return 0
        ranks: dict[int, int] = {}
        for stage in self.plan.stages:
            ranks[stage.rank] = ranks.get(stage.rank, 0) + stage.memory.total_bytes
        return max(ranks.values())


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All configurations that were tried, the best first; those without a plan last."""

    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Plan:
        """Plan of the best configuration."""
        found = self.candidates[0].plan
        assert found is not None
        return found


def search(
    profiles: Sequence[Profile],
    request: PlanRequest,
    *,
    devices: int,
    global_batch: int,
    schedules: Sequence[str] = SEARCHED,
    replicas: bool = False,
) -> SearchResult:
    """Return all ways to train a global batch on some devices, the fastest first.

    Parameters
    ----------
    profiles
        The same model at one or several batch sizes: the sizes of a micro-batch to choose from.
    request
        What stays as it is: memory, links, optimizer, wishes, limits. Its stages, micro-batches,
        schedule, ranks and replicas are searched; its time limit is shared by all of them.
    devices
        Devices at hand; all are used where that is fastest.
    global_batch
        Rows per step, over all replicas.
    schedules
        Names to choose from.
    replicas
        Whether several copies of a pipeline may share the devices; exports cannot run them yet.

    Raises
    ------
    UsageError
        If no micro-batch divides the global batch.
    InfeasibleError
        If no configuration has a plan.
    """
    started = time.monotonic()
    requests = [
        (profile, asked)
        for profile in profiles
        for asked in _requests(profile, request, devices, global_batch, schedules, replicas)
    ]
    if not requests:
        sizes = ", ".join(str(_rows(profile)) for profile in profiles)
        raise UsageError(
            f"no micro-batch divides a global batch of {global_batch}",
            cause=f"the profiled batch sizes are {sizes}",
            hint="profile with a --batch-size that divides it",
        )
    found = []
    for done, (profile, asked) in enumerate(requests):
        left = request.time_limit_s - (time.monotonic() - started)
        share = max(_LEAST_S, left / (len(requests) - done))
        found.append(_try(profile, replace(asked, time_limit_s=share), global_batch))
    ordered = sorted(found, key=lambda candidate: -candidate.samples_per_s)
    best = ordered[0]
    if best.plan is None:
        raise InfeasibleError(
            f"no way to train a batch of {global_batch} on {devices} devices",
            cause=ordered[0].reason,
            hint="give more or larger devices, or profile a smaller --batch-size",
        )
    return SearchResult((best, *(_explained(other, best) for other in ordered[1:])))


def _rows(profile: Profile) -> int:
    return profile.model.batch_size or 1


def _requests(
    profile: Profile,
    request: PlanRequest,
    devices: int,
    global_batch: int,
    schedules: Sequence[str],
    replicas: bool,
) -> Iterator[PlanRequest]:
    """Yield what to ask for at one batch size; what a schedule refuses is found out later."""
    for copies in range(1, devices + 1 if replicas else 2):
        rows = copies * _rows(profile)
        if global_batch % rows:
            continue
        for ranks in _rank_counts(devices // copies):
            for schedule in schedules if ranks > 1 else schedules[:1]:
                chunks = 2 if schedule == "interleaved" else 1
                if ranks * chunks <= len(profile.layers):
                    yield replace(
                        request,
                        stages=ranks * chunks,
                        ranks=ranks,
                        microbatches=global_batch // rows,
                        schedule=schedule,
                        replicas=copies,
                    )


def _rank_counts(most: int) -> list[int]:
    """Return how many devices one pipeline may have: all there are, and powers of two."""
    return sorted({most, *(2**power for power in range(most.bit_length()))} & set(range(most + 1)))


def _try(profile: Profile, request: PlanRequest, global_batch: int) -> Candidate:
    size = _rows(profile)
    try:
        found = plan(profile, request)
    except AutosplitError as error:
        reason = error.message if error.cause is None else f"{error.message}: {error.cause}"
        return Candidate(request, size, None, 0.0, reason)
    return Candidate(request, size, found, global_batch / found.step_s if found.step_s else 0.0)


# ---------------------------------------------------------------- why one lost


def _explained(candidate: Candidate, best: Candidate) -> Candidate:
    if candidate.plan is None or best.plan is None:
        return candidate
    slower = candidate.plan.step_s / best.plan.step_s - 1 if best.plan.step_s else 0.0
    if slower < 1e-3:
        return replace(candidate, reason="as fast")
    spent, at_best = _spent(candidate.plan), _spent(best.plan)
    worst = max(spent, key=lambda name: spent[name] - at_best[name])
    share = spent[worst] / candidate.plan.step_s
    return replace(
        candidate, reason=f"{format_share(slower)} slower: {format_share(share)} {worst}"
    )


def _spent(found: Plan) -> dict[str, float]:
    """Return where the seconds of a step go, summing to the step."""
    microbatches = found.request.microbatches
    ranks: dict[int, float] = {}
    for stage in found.stages:
        work = stage.forward_s + stage.backward_s
        ranks[stage.rank] = ranks.get(stage.rank, 0.0) + work
    even = sum(ranks.values()) / len(ranks)
    return {
        "compute": microbatches * even,
        "waiting for the busiest stage": microbatches * (max(ranks.values()) - even),
        "sending between stages": microbatches * max(0.0, found.bottleneck_s - max(ranks.values())),
        "summing gradients": found.sync_s,
        "filling and draining": max(
            0.0, found.step_s - found.sync_s - microbatches * found.bottleneck_s
        ),
    }
