"""Assign layers to stages and stages to devices: pose the chain problems, check the answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from autosplit import repair, solvers, ties
from autosplit.constraints import Constraints
from autosplit.cost import CostModel, PlanCost
from autosplit.deadline import Deadline
from autosplit.devices import Devices
from autosplit.solvers.base import ChainProblem, Solution
from autosplit.types import PlanRequest
from autosplit.variants import Variant, in_file_order, least_s, variants

_REPAIRS = 8
"""How often budgets are tightened for memory that the chain problem leaves out."""

_RESERVE_S = 3.0
"""Seconds kept for such repairs, and for devices in the order of their file."""

_MIXES = 24
"""How many ways to leave devices unused are tried, fastest devices first."""

_CHUNKS_GAP = 0.01
"""Gap that is enough where several stages share a device."""

_ALIKE: dict[Literal["none", "all"], float] = {"none": 0.5, "all": 1.0}
"""Choices of recomputation that are the same for all layers; shares of the time left for each."""

_ALIKE_S = 2.0
"""Most seconds for each of them."""

Stop = Literal["time", "gap", "size", "memory", "chunks", "simulation"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A plan that fits, with what is proven about it.

    Parameters
    ----------
    model
        Cost model with the devices in the order of the answer.
    stage_of
        Stage of each layer.
    recompute
        Layers recomputed in backward.
    cost
        What the plan costs.
    bound_s
        Proven lower bound of the objective.
    solver, notes
        Who answered, and its remarks.
    stopped
        Why it is not proven, as in ``Plan``.
    solution
        The answer to the chain problem that the plan is made from; None where it was given.
    """

    model: CostModel
    stage_of: tuple[int, ...]
    recompute: frozenset[int]
    cost: PlanCost
    bound_s: float
    solver: str
    notes: tuple[str, ...] = ()
    stopped: Stop | None = None
    solution: Solution | None = None

    @property
    def proven(self) -> bool:
        """Whether the bound meets the objective."""
        return self.bound_s >= self.cost.objective_s * (1 - 1e-9)

    @property
    def fits(self) -> bool:
        """Whether every rank fits its device."""
        return not any(self.model.rank_excess(self.cost))


@dataclass(frozen=True, slots=True)
class Failure:
    """No plan: there is none ("infeasible"), or none was found in time ("unknown")."""

    status: Literal["infeasible", "unknown"]


def assign(
    model: CostModel,
    wishes: Constraints,
    request: PlanRequest,
    deadline: Deadline,
    *,
    devices: Devices | None = None,
    cross_check: bool = False,
    persist: bool = True,
) -> Answer | Failure:
    """Return the best plan that is found in time.

    Parameters
    ----------
    model
        Costs; its places and links are those of a fixed order of devices.
    wishes
        What may move where.
    request
        Solver, gap and recomputation.
    deadline
        When the search ends.
    devices
        Devices whose order is free; None for the order of the model.
    cross_check
        Whether every solver answers, and a difference is an error.
    persist
        Whether a first plan may take a little longer than that.
    """
    if request.recompute != "auto":
        return _best_variant(model, wishes, request, deadline, devices, cross_check, persist)
    early = deadline.keeping(len(_ALIKE) * _ALIKE_S)
    best = _best_variant(model, wishes, request, early, devices, cross_check, persist=False)
    if best == Failure("infeasible") or (isinstance(best, Answer) and best.proven):
        return best
    # Without a proof, a choice made for all layers alike may be better than one for each.
    floor_s = model.even_bound_s() if devices is None else least_s(model, devices)
    for mode, part in _ALIKE.items():
        insist = persist and isinstance(best, Failure)
        if deadline.passed and not insist:
            continue
        alike, until = replace(request, recompute=mode), deadline.share(part).within(_ALIKE_S)
        found = _best_variant(model, wishes, alike, until, devices, cross_check, insist)
        best = _kept(best, found, floor_s, deadline)
    return best


def _kept(
    best: Answer | Failure, other: Answer | Failure, floor_s: float, deadline: Deadline
) -> Answer | Failure:
    """Return the better of two, with the bound of the first, which allows what both may do."""
    better = _better(best, other)
    if not isinstance(better, Answer):
        return best
    if isinstance(best, Answer):
        return replace(better, bound_s=best.bound_s, stopped=best.stopped, notes=best.notes)
    return replace(better, bound_s=floor_s, stopped="time" if deadline.passed else "memory")


def _best_variant(
    model: CostModel,
    wishes: Constraints,
    request: PlanRequest,
    deadline: Deadline,
    devices: Devices | None,
    cross_check: bool,
    persist: bool,
) -> Answer | Failure:
    """Return the best plan over all choices of devices."""
    until = deadline.keeping(_RESERVE_S) if devices else deadline
    best: Answer | Failure = Failure("infeasible")
    bound_s = float("inf")
    stopped: Stop | None = None
    chosen: Variant | None = None
    for number, variant in enumerate(variants(model, wishes, request.recompute, devices)):
        late = until.passed
        if number and (late or number == _MIXES):
            found: Answer | Failure = Failure("unknown")
        else:
            insist = persist and not number and devices is None
            found = _solve(variant, wishes, request, until, cross_check, insist)
        if found == Failure("unknown") and devices:
            # Of these devices, and of those that are left, only a bound is known.
            bound_s = min(bound_s, least_s(model, devices))
            stopped = stopped or ("time" if late else "size")
        if isinstance(found, Answer):
            bound_s = min(bound_s, found.bound_s)
            stopped = stopped or found.stopped
        best = _better(best, found)
        if best is found:
            chosen = variant
        if number and (late or number == _MIXES):
            break
    if devices and best == Failure("unknown"):
        # Too many devices that differ for a search of their order.
        chosen = in_file_order(model, wishes, request.recompute, devices)
        best = _solve(chosen, wishes, request, deadline, cross_check, persist)
    if isinstance(best, Failure):
        return Failure("unknown") if stopped else best
    assert chosen is not None
    best = replace(best, bound_s=bound_s, stopped=stopped)
    best = _tasteful(best, chosen, wishes, request, deadline)
    return replace(best, stopped=None) if best.proven else best


def _tasteful(
    found: Answer, variant: Variant, wishes: Constraints, request: PlanRequest, deadline: Deadline
) -> Answer:
    """Return a plan of equal worth with cuts where people would cut, if there is one."""
    if not found.proven or not found.solution or request.boundaries:
        return found
    solution = ties.tasteful(
        variant.problem, found.solution, found.model.graph, wishes.groups, deadline.left_s
    )
    if solution is None:
        return found
    other = _checked(variant, wishes, request, solution, found.bound_s)
    if other.cost.objective_s > found.cost.objective_s * (1 + 1e-9) or not other.fits:
        return found
    return replace(other, solver=found.solver, notes=found.notes, stopped=found.stopped)


def _better(best: Answer | Failure, found: Answer | Failure) -> Answer | Failure:
    if isinstance(best, Failure) and best.status == "infeasible":
        return found
    if isinstance(found, Failure):
        return best
    if isinstance(best, Failure) or found.cost.objective_s < best.cost.objective_s:
        return found
    return best


# ---------------------------------------------------------------- one choice of devices


def _solve(
    variant: Variant,
    wishes: Constraints,
    request: PlanRequest,
    deadline: Deadline,
    cross_check: bool,
    persist: bool,
) -> Answer | Failure:
    """Return the best plan on the devices of a variant.

    The chain problem leaves out some memory (see ``chain``). Its answer bounds every plan; where
    it does not fit, cautious and tightened problems give plans that do, without a proof.
    """
    chunks = variant.model.schedule.chunks

    def ask(problem: ChainProblem, until: Deadline, persist: bool = False) -> Solution:
        gap, solver = request.gap, request.solver
        if chunks > 1 and solver == "auto":
            # Loads of stages stand in for those of devices: a proof of them would prove nothing.
            quick = solvers.solve(
                problem, "dp", until.left_s, max(gap, _CHUNKS_GAP), persist=persist
            )
            if quick.stage_of is not None or quick.status == "infeasible":
                return quick
        return solvers.solve(problem, solver, until.left_s, gap, cross_check, wishes.start, persist)

    until = deadline.keeping(_RESERVE_S) if variant.problem.budget_bytes else deadline
    first = solution = ask(variant.problem, until, persist)
    # The chain problem knows no ranks with several stages.
    bound_s = first.bound_s if chunks == 1 else variant.model.even_bound_s()
    stopped = _stopped(first, request, late=until.passed)
    if chunks > 1:
        stopped = "chunks"
    fitting: list[Answer] = []
    tightened = variant
    for attempt in range(_REPAIRS):
        if solution.stage_of is None:
            break
        found = _checked(variant, wishes, request, solution, bound_s)
        if found.fits:
            fitting.append(replace(found, stopped=stopped))
            break
        stopped = stopped or "memory"
        if request.recompute == "auto":
            fitting.append(replace(_with_room(found), stopped=stopped))
        if deadline.passed and not (persist and not attempt):
            break
        if attempt == 0:
            cautious = ask(variant.cautious(), deadline.share(1 / 2), persist)
            if cautious.stage_of is not None:
                wary = _checked(variant, wishes, request, cautious, bound_s)
                fitting.append(replace(wary, stopped=stopped))
        if deadline.passed:
            break
        tightened = tightened.tightened(found.model, found.cost)
        solution = ask(tightened.problem, deadline.share(1 / 2))
    if fitting := [found for found in fitting if found.fits]:
        return min(fitting, key=lambda found: found.cost.objective_s)
    return Failure("infeasible" if first.status == "infeasible" else "unknown")


def _stopped(solution: Solution, request: PlanRequest, *, late: bool) -> Stop | None:
    """Return why a solver proved nothing: it is told by what it was allowed and what it used."""
    if solution.status in ("optimal", "infeasible"):
        return None
    if request.gap and solution.gap <= request.gap:
        return "gap"
    return "time" if late else "size"


def _checked(
    variant: Variant,
    wishes: Constraints,
    request: PlanRequest,
    solution: Solution,
    bound_s: float,
) -> Answer:
    """Return a solution as a plan with the costs of the cost model."""
    assert solution.stage_of is not None
    model = variant.ordered(solution)
    stage_of = _by_layer(wishes, solution.stage_of)
    recompute = _recomputed(model, wishes, request, solution)
    cost = model.evaluate(stage_of, recompute)
    bound_s = min(bound_s, cost.objective_s)
    return Answer(
        model,
        stage_of,
        recompute,
        cost,
        bound_s,
        solution.solver,
        solution.notes,
        solution=solution,
    )


def _with_room(found: Answer) -> Answer:
    """Return a plan with more layers recomputed, where that makes it fit."""
    recompute = repair.with_room(found.model, found.stage_of, found.recompute)
    cost = found.model.evaluate(found.stage_of, recompute)
    return replace(found, recompute=recompute, cost=cost)


def _by_layer(wishes: Constraints, stage_of: Iterable[int]) -> tuple[int, ...]:
    placed = {
        layer: stage
        for group, stage in zip(wishes.groups, stage_of, strict=True)
        for layer in group
    }
    return tuple(placed[layer] for layer in range(len(placed)))


def _recomputed(
    model: CostModel, wishes: Constraints, request: PlanRequest, solution: Solution
) -> frozenset[int]:
    if request.recompute == "all":
        return frozenset(range(len(model.graph)))
    return frozenset(layer for group in solution.recompute for layer in wishes.groups[group])
