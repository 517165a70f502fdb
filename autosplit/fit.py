"""Why no plan fits, and the smallest change with which one would."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from autosplit.assign import Answer, Failure
from autosplit.constraints import spelled
from autosplit.cost import OPTIMIZER_COPIES, CostModel
from autosplit.devices import Devices
from autosplit.errors import AutosplitError, InfeasibleError
from autosplit.graph import Graph
from autosplit.types import PlanRequest
from autosplit.units import format_bytes

_SEARCH_S = 10.0
"""Time for finding out what would fit."""

_PRECISION = 1.01
"""How closely the smallest budget is found."""


class Attempt(Protocol):
    """Tries a changed request."""

    def __call__(self, request: PlanRequest, rows: float = 1.0) -> Answer | None:
        """Return any plan, with a share of the rows of a micro-batch; None when there is none."""


def refuse_large_layer(
    model: CostModel,
    request: PlanRequest,
    attempt: Attempt | None,
    devices: Devices | None = None,
) -> None:
    """Refuse at once when one layer alone does not fit on any device.

    Parameters
    ----------
    model, request, attempt
        As in ``explain``.
    devices
        Devices whose order is free.

    Raises
    ------
    InfeasibleError
        Naming the layer and the bytes that are missing.
    """
    places = model.places
    if devices is not None:
        places = tuple(devices.place(device) for device in devices.cluster.devices)
    budget = max(place.budget_bytes for place in places)
    if math.isinf(budget):
        return
    # A layer that is recomputed keeps its activations for one micro-batch at a time.
    least = min(model.schedule.in_flight) if request.recompute == "none" else 1
    needs = [model.memory.least_bytes(layer, least) for layer in range(len(model.graph))]
    worst = max(range(len(needs)), key=needs.__getitem__)
    if needs[worst] <= budget:
        return
    raise InfeasibleError(
        f"no {model.schedule.stages}-stage plan fits {format_bytes(budget)} per device",
        cause=f"{model.graph.layers[worst].name} alone needs {format_bytes(needs[worst])}, "
        f"{format_bytes(needs[worst] - budget)} more than a device has",
        hint=None if attempt is None else _hint_to_large_layer(model, request, attempt),
    )


def _hint_to_large_layer(model: CostModel, request: PlanRequest, attempt: Attempt) -> str:
    """Return what makes one layer smaller: no other boundary does."""
    deadline = time.monotonic() + _SEARCH_S
    changes = list(_changes(model, request, attempt, deadline))
    if OPTIMIZER_COPIES[request.optimizer] and attempt(replace(_quick(request), optimizer="sgd")):
        changes.append("--optimizer sgd")
    if not changes:
        return "give larger devices"
    return f"would fit: {', or '.join((*changes, 'larger devices'))}"


def explain(
    failure: Failure,
    model: CostModel,
    request: PlanRequest,
    attempt: Attempt | None,
) -> AutosplitError:
    """Return the error for a request without a plan, with the smallest change that would fit.

    Parameters
    ----------
    failure
        Whether there is no plan, or none was found in time.
    model, request
        What was asked for.
    attempt
        Tries a changed request; None to look for no change.
    """
    stages = model.schedule.stages
    budget = min(place.budget_bytes for place in model.places)
    if failure.status == "unknown" and math.isinf(budget):
        return AutosplitError(
            f"no {stages}-stage plan found in {request.time_limit_s:g} s",
            cause="the solver stopped at its limit before its first plan",
            hint="raise --time-limit",
        )
    if math.isinf(budget):
        return _refused_wishes(request, attempt)
    message = f"no {stages}-stage plan fits {format_bytes(budget)} per device"
    if failure.status == "unknown":
        message += " (none was found, without a proof)"
    if attempt is None:
        return InfeasibleError(message)
    deadline = time.monotonic() + _SEARCH_S
    changes = list(_changes(model, request, attempt, deadline))
    needed, cause = _smallest_budget(model, request, attempt, deadline)
    if needed is not None:
        changes.append(f"devices of {format_bytes(needed)}")
    return InfeasibleError(
        message,
        cause=cause,
        hint=f"would fit: {', or '.join(changes)}" if changes else "give larger devices",
    )


def _refused_wishes(request: PlanRequest, attempt: Attempt | None) -> InfeasibleError:
    """Return the error for wishes that no plan grants, naming those that would have to go."""
    wishes = [text for text, _ in spelled(request)]
    needless = []
    deadline = time.monotonic() + _SEARCH_S
    for text, rest in spelled(request):
        if attempt and time.monotonic() < deadline and attempt(_quick(rest)):
            needless.append(text)
    instead = f"leave out {', or '.join(needless)}" if needless else "leave out several of these"
    return InfeasibleError(
        f"no {request.stages}-stage plan meets the constraints",
        cause=f"they cannot be met together: {', '.join(wishes)}" if wishes else None,
        hint=f"{instead}, or take another number of stages",
    )


def _quick(request: PlanRequest) -> PlanRequest:
    """Ask for any plan, not for the best."""
    return replace(request, gap=1.0, time_limit_s=2.0, objective="bottleneck")


def _changes(
    model: CostModel, request: PlanRequest, attempt: Attempt, deadline: float
) -> Iterator[str]:
    """Yield changes of the request with which a plan fits, cheapest first."""
    quick = _quick(request)
    if request.schedule == "gpipe" and attempt(replace(quick, schedule="1f1b")):
        yield "--schedule 1f1b"
    recomputable = request.recompute == "none" and model.graph.training
    if recomputable and attempt(replace(quick, recompute="all")):
        yield "--recompute auto"
    for text, rest in spelled(request):
        if time.monotonic() < deadline and attempt(_quick(rest)):
            yield f"the same without {text}"
    yield from _more_stages(model, request, attempt, deadline)
    yield from _fewer_rows(model, request, attempt, deadline)


def _more_stages(
    model: CostModel, request: PlanRequest, attempt: Attempt, deadline: float
) -> Iterator[str]:
    if request.cluster is not None or request.pins or request.boundaries:
        return
    for stages in (request.stages + 1, request.stages + 2, 2 * request.stages):
        if stages > len(model.graph) or time.monotonic() > deadline:
            return
        microbatches = max(stages, request.microbatches)
        more = replace(_quick(request), stages=stages, microbatches=microbatches, ranks=None)
        if attempt(more):
            yield f"--stages {stages}"
            return


def _fewer_rows(
    model: CostModel, request: PlanRequest, attempt: Attempt, deadline: float
) -> Iterator[str]:
    """Yield the largest micro-batch that fits, in halves, with as many more of them.

    What depends on rows is taken to grow with them.
    """
    rows = model.graph.rows
    smaller = rows
    while smaller % 2 == 0 and time.monotonic() < deadline:
        smaller //= 2
        factor = rows // smaller
        more = replace(_quick(request), microbatches=factor * request.microbatches)
        if attempt(more, smaller / rows):
            yield f"profile with --batch-size {smaller} (now {rows})"
            return


def with_rows(layers: Graph, share: float) -> Graph:
    """Return a graph with a share of the rows of its micro-batches: what grows with them shrinks.

    Times stay as they are; they do not decide what fits.
    """

    def fewer(nbytes: int) -> int:
        return math.ceil(nbytes * share)

    return replace(
        layers,
        layers=tuple(
            replace(layer, workspace_bytes=fewer(layer.workspace_bytes)) for layer in layers.layers
        ),
        values=tuple(replace(value, nbytes=fewer(value.nbytes)) for value in layers.values),
        storage_bytes={storage: fewer(nbytes) for storage, nbytes in layers.storage_bytes.items()},
    )


def _smallest_budget(
    model: CostModel, request: PlanRequest, attempt: Attempt, deadline: float
) -> tuple[int | None, str | None]:
    """Return the smallest memory per device with which a plan was found, and what fills it."""
    if request.cluster is not None:
        return None, None
    quick = _quick(request)
    low = float(request.memory_bytes or 0)
    best = attempt(replace(quick, memory_bytes=None))
    if best is None:
        return None, None
    while low * _PRECISION < (high := _peak(best)) and time.monotonic() < deadline:
        middle = (low + high) / 2
        found = attempt(replace(quick, memory_bytes=int(middle)))
        if found is None:
            low = middle
        else:
            best = found
    return _peak(best), _fullest(best)


def _peak(answer: Answer) -> int:
    return max(answer.model.rank_bytes(answer.cost))


def _fullest(answer: Answer) -> str:
    stages = answer.cost.stages
    fullest = max(range(len(stages)), key=lambda stage: stages[stage].memory.total_bytes)
    memory = stages[fullest].memory
    state = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    layers = [answer.model.graph.layers[layer].name for layer in stages[fullest].layers]
    span = layers[0] if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"
    held = answer.model.schedule.in_flight[fullest]
    return (
        f"the leanest plan found needs {format_bytes(memory.total_bytes)} on stage {fullest} "
        f"({span}): {format_bytes(state)} of state, {format_bytes(memory.activations_bytes)} of "
        f"activations with {held} micro-batch{'es' if held > 1 else ''} in flight"
    )
