"""Where nodes stand, as rows of an integer linear program, for devices in one order.

``y[v, s]`` is 1 when node v stands in stages 0..s, so that stage s holds ``y[v, s] - y[v, s-1]``.
Given a plan of value T, most of these are known beforehand: v cannot lie before a boundary when
its ancestors weigh more than the stages before it can do in T, and must when its descendants
weigh more than the stages after it can. Known ones are plain numbers and never become variables;
this fixing is what makes the program small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from autosplit.solvers.instance import Bools, Instance
from autosplit.solvers.linear import Affine, LinearProgram


class ImpossibleError(Exception):
    """No plan reaches the cut-off."""


class TooLargeError(Exception):
    """The program has more variables than can be built, let alone solved, in the time."""


def need(possible: bool) -> None:
    """Raise ``ImpossibleError`` unless something is possible."""
    if not possible:
        raise ImpossibleError


class Placement:
    """The stages of the nodes of an instance.

    Parameters
    ----------
    inst, order
        The problem, and the kind of each stage.
    program
        Where variables and rows go.
    most
        T: only plans whose every load is at most this.
    most_open
        Most positions of nodes that fixing may leave open.

    Attributes
    ----------
    y
        ``y[s][v]`` for s from -1 (nothing) to S-1 (everything), shifted by one.

    Raises
    ------
    ImpossibleError
        If fixing alone proves that there is no plan.
    TooLargeError
        If fixing leaves more than ``most_open`` positions open.
    """

    def __init__(
        self,
        inst: Instance,
        order: Sequence[int],
        program: LinearProgram,
        most: float,
        most_open: float = math.inf,
    ) -> None:
        self.inst, self.order, self.program, self.most = inst, order, program, most
        self.y = self._prefix_variables(most_open)
        self._order_rows()
        self._strict_rows()
        self._neighbour_rows()

    def in_stage(self, node: int, stage: int) -> Affine:
        """Return whether a stage holds a node."""
        return Affine().add(self.y[stage + 1][node]).add(self.y[stage][node], -1.0)

    def held(self, stage: int, weights: Sequence[float]) -> Affine:
        """Return the weight of a stage."""
        total = Affine()
        for weight, after, before in zip(weights, self.y[stage + 1], self.y[stage], strict=True):
            if weight and after is not before:
                total.add(after, weight).add(before, -weight)
        return total

    def any(self, stage: int, nodes: Sequence[int]) -> Affine:
        """Return whether a stage holds any of the nodes."""
        held = [self.in_stage(node, stage) for node in nodes]
        if all(each.known for each in held):
            return Affine(max(each.constant for each in held))
        if len(held) == 1:
            return held[0]
        result = self.program.variable(0, 1)
        for each in held:
            self.program.at_most(each, result)
        return result

    def stages(self, values: Sequence[float]) -> tuple[int, ...]:
        """Return the stage of each node from the values of the variables."""

        def is_set(value: Affine | float) -> bool:
            if isinstance(value, Affine):
                return values[next(iter(value.terms))] > 0.5
            return value > 0.5

        inner = self.y[1:-1]
        return tuple(
            sum(not is_set(prefix[node]) for prefix in inner) for node in range(self.inst.num_nodes)
        )

    # ------------------------------------------------------------ variables

    def _prefix_variables(self, most_open: float) -> list[list[Affine | float]]:
        inst = self.inst
        decided = [self._decided(boundary) for boundary in range(1, inst.num_stages)]
        need(not any((inside & outside).any() for inside, outside in decided))
        if sum(int((~inside & ~outside).sum()) for inside, outside in decided) > most_open:
            raise TooLargeError
        inner: list[list[Affine | float]] = [
            [
                1.0 if sure else 0.0 if never else self.program.variable(0, 1, integer=True)
                for sure, never in zip(inside.tolist(), outside.tolist(), strict=True)
            ]
            for inside, outside in decided
        ]
        return [[0.0] * inst.num_nodes, *inner, [1.0] * inst.num_nodes]

    def _decided(self, boundary: int) -> tuple[Bools, Bools]:
        """Return the nodes that surely lie before a boundary, and surely behind it."""
        inst = self.inst
        used, rest = list(self.order[:boundary]), list(self.order[boundary:])
        capacity = inst.pace * np.maximum(self.most - inst.entry, 0.0) * (1 + 1e-9) + 1e-12
        before, after = inst.weights_before, inst.weights_after
        outside = (before[:, 0] > capacity[used].sum()) | (inst.earliest >= boundary)
        inside = (after[:, 0] > capacity[rest].sum()) | (inst.latest < boundary)
        if inst.memory_may_bind:
            budgets = np.array([kind.budget_bytes for kind in inst.kinds]) * (1 + 1e-9)
            flight = inst.in_flight
            least = before[:, 1] + flight[:boundary].min() * before[:, 2]
            outside |= least > budgets[used].sum()
            least = after[:, 1] + flight[boundary:].min() * after[:, 2]
            inside |= least > budgets[rest].sum()
        return inside, outside

    # ------------------------------------------------------------ rows

    def _order_rows(self) -> None:
        """Ask for growing prefixes, edges that point forward and devices that can run."""
        inst = self.inst
        for stage in range(inst.num_stages):
            before, until = self.y[stage], self.y[stage + 1]
            for node in range(inst.num_nodes):
                self._implies(before[node], until[node])
                if inst.excluded[self.order[stage], node]:
                    self._implies(until[node], before[node])
            for first, second in inst.problem.edges:
                self._implies(until[second], until[first])
        if not inst.problem.allow_empty:
            for stage in range(inst.num_stages):
                held = self.held(stage, np.ones(inst.num_nodes).tolist())
                need(self.program.at_most(1.0, held))

    def _strict_rows(self) -> None:
        """Ask that the second of two nodes that cannot share a stage comes in a later one."""
        for first, second in self.inst.strict:
            for before, until in zip(self.y, self.y[1:], strict=False):
                self._implies(until[second], before[first])

    def _neighbour_rows(self) -> None:
        """Ask that no stage holds nodes that are to stay apart, or more than one that is alone."""
        inst, problem = self.inst, self.inst.problem
        strangers = {node: inst.unrelated(node) for node in problem.alone}
        for stage in range(inst.num_stages):
            for first, second in problem.apart:
                both = Affine().add(self.any(stage, first)).add(self.any(stage, second))
                need(self.program.at_most(both, 1.0))
            for node in problem.alone:
                here = self.in_stage(node, stage)
                if here.known and not here.constant:
                    continue
                for other in strangers[node]:
                    both = Affine().add(here).add(self.in_stage(other, stage))
                    need(self.program.at_most(both, 1.0))

    def _implies(self, first: Affine | float, second: Affine | float) -> None:
        if first is second or first == 0.0 or second == 1.0:
            return
        need(self.program.at_most(first, second))
