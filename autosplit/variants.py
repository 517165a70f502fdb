"""Which devices to solve for: those of a model in order, or some of a cluster in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from autosplit import chain
from autosplit.constraints import Constraints
from autosplit.cost import CostModel, PlanCost
from autosplit.devices import Devices
from autosplit.solvers.base import ChainProblem, Solution


@dataclass(frozen=True)
class Variant:
    """A chain problem, and the cost model of its answers.

    Parameters
    ----------
    model
        Knows what everything costs, with its own devices in order.
    pose
        Makes the problem; takes the keyword ``cautious``.
    problem
        The problem as it is asked.
    devices, mix
        Devices whose order is free, and how many of each class are used; None for those of the
        model.
    """

    model: CostModel
    pose: Callable[..., ChainProblem]
    problem: ChainProblem
    devices: Devices | None = None
    mix: tuple[int, ...] = ()

    def cautious(self) -> ChainProblem:
        """Return the problem that counts too much memory rather than too little."""
        return self.pose(cautious=True)

    def ordered(self, solution: Solution) -> CostModel:
        """Return the cost model with devices in the order of a solution."""
        if self.devices is None:
            return self.model
        order = self.devices.dealt(self.mix, solution.kind_of)
        places, links = self.devices.in_order(self.model.schedule, order)
        return replace(self.model, places=places, links=links)

    def tightened(self, model: CostModel, cost: PlanCost) -> Variant:
        """Return the variant with budgets lowered where a plan exceeds them."""
        excess = model.rank_excess(cost)
        if self.devices is None:
            chunks = model.schedule.chunks
            budgets = tuple(
                max(0.0, budget - excess[model.schedule.rank_of(stage)] / chunks)
                for stage, budget in enumerate(self.problem.budget_bytes)
            )
            return replace(self, problem=replace(self.problem, budget_bytes=budgets))
        kinds = tuple(
            replace(kind, budget_bytes=max(0.0, kind.budget_bytes - max(excess)))
            for kind in self.problem.kinds
        )
        return replace(self, problem=replace(self.problem, kinds=kinds))


def variants(
    model: CostModel,
    wishes: Constraints,
    recompute: Literal["none", "auto", "all"],
    devices: Devices | None,
) -> Iterator[Variant]:
    """Yield every choice of devices, the fastest first.

    Parameters
    ----------
    model, wishes
        Costs, and what may move where.
    recompute
        Whether layers are recomputed in backward.
    devices
        Devices whose order is free; None for those of the model, the one choice.
    """
    pose = _posing(model, wishes, recompute)
    if devices is None:
        yield Variant(model, pose, pose())
        return
    for mix in devices.mixes(model.schedule.ranks):
        kinds, links = devices.kinds(mix, wishes.groups, recompute == "all")
        mixed = partial(pose, kinds=kinds, kind_links=links)
        yield Variant(model, mixed, mixed(), devices, mix)


def in_file_order(
    model: CostModel,
    wishes: Constraints,
    recompute: Literal["none", "auto", "all"],
    devices: Devices,
) -> Variant:
    """Return the fastest devices in the order of the file: one order of many, soon solved."""
    mix = next(devices.mixes(model.schedule.ranks))
    taken = {device.name for device in devices.taken(mix)}
    order = [device for device in devices.cluster.devices if device.name in taken]
    places, links = devices.in_order(model.schedule, order)
    model = replace(model, places=places, links=links)
    pose = _posing(model, wishes, recompute)
    return Variant(model, pose, pose())


def least_s(model: CostModel, devices: Devices) -> float:
    """Return an objective that no plan beats, whichever devices it uses."""
    places = tuple(devices.place(device) for device in devices.cluster.devices)
    return replace(model, places=places * model.schedule.chunks).even_bound_s()


def _posing(
    model: CostModel, wishes: Constraints, recompute: Literal["none", "auto", "all"]
) -> Callable[..., ChainProblem]:
    return partial(
        chain.problem,
        model,
        wishes.groups,
        fixed=wishes.fixed,
        apart=wishes.apart,
        alone=wishes.alone,
        recompute=recompute,
    )
