"""Why no plan fits, and the smallest change with which one would."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from autosplit.assign import Answer, Failure
from autosplit.constraints import spelled
from autosplit.cost import OPTIMIZER_COPIES, CostModel
from autosplit.deadline import Deadline
from autosplit.devices import Devices
from autosplit.errors import AutosplitError, InfeasibleError
from autosplit.graph import Graph
from autosplit.types import PlanRequest
from autosplit.units import counted, format_bytes

_SEARCH_S = 10.0
"""Most time for finding out what would fit."""

RESERVE_S = 3.0
"""Time that a search for a plan leaves for that where memory is limited."""

_TRY_S = 2.0
"""Most time for one change."""

_LATE = "give a longer --time-limit to be told what would fit"

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
    deadline: Deadline,
    devices: Devices | None = None,
) -> None:
    """Refuse at once when one layer alone does not fit on any device.

    Parameters
    ----------
    model, request, attempt, deadline
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
        hint=None if attempt is None else _hint_to_large_layer(model, request, attempt, deadline),
    )


def _hint_to_large_layer(
    model: CostModel, request: PlanRequest, attempt: Attempt, deadline: Deadline
) -> str:
    """Return what makes one layer smaller: no other boundary does."""
    trial = _Trial(attempt, deadline.within(_SEARCH_S))
    changes = list(_changes(model, request, trial))
    if OPTIMIZER_COPIES[request.optimizer] and trial(replace(request, optimizer="sgd")):
        changes.append("--optimizer sgd")
    return trial.hint([*changes, "larger devices"] if changes else [])


def explain(
    failure: Failure,
    model: CostModel,
    request: PlanRequest,
    attempt: Attempt | None,
    deadline: Deadline,
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
    deadline
        When the search for changes ends; what was not tried by then is left out.
    """
    stages = model.schedule.stages
    budget = min(place.budget_bytes for place in model.places)
    if failure.status == "unknown" and math.isinf(budget):
        return AutosplitError(
            f"no {stages}-stage plan was found in {request.time_limit_s:g} s",
            cause="the solver stopped at its limit before its first plan",
            hint="raise --time-limit",
        )
    if math.isinf(budget):
        return _refused_wishes(request, attempt, deadline)
    message = f"no {stages}-stage plan fits {format_bytes(budget)} per device"
    if failure.status == "unknown":
        message += " (none was found, without a proof)"
    if attempt is None:
        return InfeasibleError(message)
    if deadline.passed:
        return InfeasibleError(message, hint=_LATE)
    trial = _Trial(attempt, deadline.within(_SEARCH_S))
    # Half of the time is for changes, the rest for the memory that would do.
    changes = list(_changes(model, request, trial.sharing(1 / 2)))
    needed, cause = _smallest_budget(model, request, trial)
    if needed is not None:
        changes.append(f"devices of {format_bytes(needed)}")
    return InfeasibleError(message, cause=cause, hint=trial.hint(changes))


def _refused_wishes(
    request: PlanRequest, attempt: Attempt | None, deadline: Deadline
) -> InfeasibleError:
    """Return the error for wishes that no plan grants, naming those that would have to go."""
    wishes = [text for text, _ in spelled(request)]
    trial = None if attempt is None else _Trial(attempt, deadline.within(_SEARCH_S))
    needless = [text for text, rest in spelled(request) if trial and trial(rest)]
    instead = f"leave out {', or '.join(needless)}" if needless else "leave out several of these"
    return InfeasibleError(
        f"no {request.stages}-stage plan meets the constraints",
        cause=f"they cannot be met together: {', '.join(wishes)}" if wishes else None,
        hint=f"{instead}, or take another number of stages",
    )


@dataclass
class _Trial:
    """Asks for any plan, not for the best, while there is time."""

    attempt: Attempt
    deadline: Deadline

    def __call__(self, request: PlanRequest, rows: float = 1.0) -> Answer | None:
        """Return a plan for a changed request; None when none is found in time."""
        limit_s = min(_TRY_S, self.deadline.left_s)
        if not limit_s:
            return None
        quick = replace(request, gap=1.0, time_limit_s=limit_s, objective="bottleneck")
        return self.attempt(quick, rows)

    def sharing(self, part: float) -> _Trial:
        """Return one that may use a part of the time."""
        return replace(self, deadline=self.deadline.share(part))

    def hint(self, changes: Sequence[str]) -> str:
        """Return what would fit, and whether there may be more."""
        late = self.deadline.passed
        if not changes:
            return _LATE if late else "give larger devices"
        more = " (not all was tried: the time was over)" if late else ""
        return f"would fit: {', or '.join(changes)}{more}"


def _changes(model: CostModel, request: PlanRequest, trial: _Trial) -> Iterator[str]:
    """Yield changes of the request with which a plan fits, cheapest first."""
    if request.schedule == "gpipe" and trial(replace(request, schedule="1f1b")):
        yield "--schedule 1f1b"
    recomputable = request.recompute == "none" and model.graph.training
    if recomputable and trial(replace(request, recompute="all")):
        yield "--recompute auto"
    for text, rest in spelled(request):
        if trial(rest):
            yield f"the same without {text}"
    yield from _more_stages(model, request, trial)
    yield from _fewer_rows(model, request, trial)


def _more_stages(model: CostModel, request: PlanRequest, trial: _Trial) -> Iterator[str]:
    if request.cluster is not None or request.pins or request.boundaries:
        return
    for stages in (request.stages + 1, request.stages + 2, 2 * request.stages):
        if stages > len(model.graph):
            return
        microbatches = max(stages, request.microbatches)
        if trial(replace(request, stages=stages, microbatches=microbatches, ranks=None)):
            yield f"--stages {stages}"
            return


def _fewer_rows(model: CostModel, request: PlanRequest, trial: _Trial) -> Iterator[str]:
    """Yield the largest micro-batch that fits, in halves, with as many more of them.

    What depends on rows is taken to grow with them.
    """
    rows = model.graph.rows
    smaller = rows
    while smaller % 2 == 0:
        smaller //= 2
        factor = rows // smaller
        more = replace(request, microbatches=factor * request.microbatches)
        if trial(more, smaller / rows):
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
    model: CostModel, request: PlanRequest, trial: _Trial
) -> tuple[int | None, str | None]:
    """Return the smallest memory per device with which a plan was found, and what fills it."""
    if request.cluster is not None:
        return None, None
    low = float(request.memory_bytes or 0)
    best = trial(replace(request, memory_bytes=None))
    if best is None:
        return None, None
    while low * _PRECISION < (high := _peak(best)) and not trial.deadline.passed:
        middle = (low + high) / 2
        found = trial(replace(request, memory_bytes=int(middle)))
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
    held = counted(answer.model.schedule.in_flight[fullest], "micro-batch")
    return (
        f"the leanest plan found needs {format_bytes(memory.total_bytes)} on stage {fullest} "
        f"({span}): {format_bytes(state)} of state, {format_bytes(memory.activations_bytes)} of "
        f"activations with {held} in flight"
    )
