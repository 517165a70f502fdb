"""The chain problem as an integer linear program, for devices in one order.

Where nodes stand is said by ``placement``; here is what that costs: nets, loads and memory.

Times are in units of a thousandth of the lower bound and bytes in thousandths of the budget, so
that the absolute tolerances of solvers are far below any difference that matters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from autosplit.solvers.bounds import loosest_load, step_bound
from autosplit.solvers.instance import Instance
from autosplit.solvers.linear import Affine, LinearProgram
from autosplit.solvers.placement import Placement, need

SCALE = 1000.0


class PrefixModel:
    """The program of an instance for one order of devices.

    Parameters
    ----------
    inst
        The problem.
    order
        Kind of each stage.
    known
        Objective of a known plan; infinite if there is none.
    most_open
        Most positions of nodes that fixing may leave open.

    Raises
    ------
    ImpossibleError
        If fixing alone proves that no plan is as good as the known one.
    TooLargeError
        If fixing leaves more than ``most_open`` positions open.
    """

    def __init__(
        self, inst: Instance, order: Sequence[int], known: float, most_open: float = math.inf
    ) -> None:
        self.inst, self.order = inst, tuple(order)
        self.program = LinearProgram()
        self.most = self._cut_off(known) * (1 + 1e-7)
        self.floor = inst.lower_bound()
        self.unit = SCALE / (self.floor or 1.0)
        self.at = Placement(inst, self.order, self.program, self.most, most_open)
        self.crossing = self._crossings()
        self._objective()
        if inst.memory_may_bind:
            self._memory_rows()

    def _cut_off(self, known: float) -> float:
        """Return the largest load that a plan as good as the known one can have."""
        inst = self.inst
        most = min(known, loosest_load(inst))
        repeats = inst.problem.microbatches - 1
        if inst.problem.objective == "step" and repeats and math.isfinite(known):
            rest = step_bound(inst) - repeats * inst.lower_bound()
            most = min(most, (known - rest) / repeats, known / (repeats + 1))
        return most

    # ------------------------------------------------------------ nets

    def _link(self, boundary: int) -> int:
        inst = self.inst
        if inst.linked:
            return inst.link_between(self.order[boundary], self.order[boundary + 1])
        return inst.link_after(boundary)

    def _crossings(self) -> list[dict[int, Affine]]:
        """Return, for each boundary, whether each net crosses it (absent: surely not)."""
        inst = self.inst
        needed = not inst.per_device or bool(inst.factor.any() and inst.memory_may_bind)
        if not needed:
            return [{} for _ in range(inst.num_stages - 1)]
        ends = [inst.extremes(net.pins) for net in inst.problem.nets]
        return [
            {
                net: crossing
                for net, (first, last) in enumerate(ends)
                if (crossing := self._crossing(net, first, last, boundary)) is not None
            }
            for boundary in range(inst.num_stages - 1)
        ]

    def _crossing(
        self, net: int, first: list[int], last: list[int], boundary: int
    ) -> Affine | None:
        prefix = self.at.y[boundary + 1]
        highs = self._distinct(prefix[pin] for pin in first)
        lows = self._distinct(prefix[pin] for pin in last)
        if self.inst.to_end[net]:
            lows = [0.0]
        if all(high == 0.0 for high in highs) or all(low == 1.0 for low in lows):
            return None
        if len(highs) > 1:
            top = self.program.variable(0, 1)
            for high in highs:
                self.program.at_most(high, top)
            highs = [top]
        high = highs[0]
        if not isinstance(high, Affine) and 0.0 in lows:
            return Affine(1.0)
        if len(lows) == 1 and isinstance(high, Affine) and lows[0] == 0.0:
            return high
        crossing = self.program.variable(0, 1)
        for low in lows:
            if high is not low:
                self.program.at_most(Affine().add(high).add(low, -1.0), crossing)
        return crossing

    def _distinct(self, values: Iterable[Affine | float]) -> list[Affine | float]:
        return list({id(v) if isinstance(v, Affine) else v: v for v in values}.values())

    def _boundary(self, boundary: int) -> Affine:
        """Return the cost of a boundary under ``pass_through``."""
        costs = self.inst.net_cost[self._link(boundary)]
        total = Affine()
        for net, crossing in self.crossing[boundary].items():
            if costs[net]:
                total.add(crossing, float(costs[net]) * self.unit)
        return total

    def _paid(self, stage: int) -> Affine:
        """Return what a stage pays under ``per_device``."""
        inst = self.inst
        total = Affine()
        for net, cost in zip(inst.problem.nets, inst.net_cost[0].tolist(), strict=True):
            if not cost:
                continue
            inside = [self.at.in_stage(pin, stage) for pin in net.pins]
            if all(each.known for each in inside):
                touched = {each.constant for each in inside}
                total.add(cost * self.unit if len(touched) > 1 else 0.0)
                continue
            enters = self.program.variable(0, None)
            leaves = self.program.variable(0, None)
            centre = inside[0]
            for each in inside[1:]:
                more = Affine().add(each).add(centre, -1.0)
                self.program.at_most(more, enters)
                self.program.at_most(Affine().add(more, -1.0), leaves)
            total.add(enters, cost * self.unit).add(leaves, cost * self.unit)
        return total

    # ------------------------------------------------------------ loads

    def _objective(self) -> None:
        inst, program = self.inst, self.program
        top = min(self.most, loosest_load(inst)) * self.unit
        largest = program.variable(self.floor * self.unit * (1 - 1e-12), top)
        boundaries = (
            [] if inst.per_device else [self._boundary(b) for b in range(inst.num_stages - 1)]
        )
        around: list[Affine] = [Affine(), *boundaries, Affine()]
        self.recomputed: list[dict[int, Affine]] = [{} for _ in self.order]
        step = inst.problem.objective == "step"
        loads = []
        for stage, kind in enumerate(self.order):
            work = self._work(stage, kind)
            if inst.per_device:
                parts = [work.add(self._paid(stage)) if inst.kinds[kind].pays else work]
            elif inst.problem.overlap:
                parts = [work, around[stage], around[stage + 1]]
            else:
                parts = [work.add(around[stage] if stage else 0.0).add(around[stage + 1])]
            load = program.variable(0, top) if step else largest
            for part in parts:
                need(program.at_most(part, load))
            if step:
                program.at_most(load, largest)
            loads.append(load)
        if step:
            program.objective.add(largest, inst.problem.microbatches - 1.0)
            for load in loads:
                program.objective.add(load)
        else:
            program.objective.add(largest)
        self._prefix_rows(largest, boundaries)

    def _work(self, stage: int, kind: int) -> Affine:
        """Return the compute time of a stage, with its entry and what it recomputes."""
        inst, program = self.inst, self.program
        work = self.at.held(stage, (inst.work[kind] * self.unit).tolist())
        entry = float(inst.entry[kind]) * self.unit
        if entry and inst.problem.allow_empty:
            used = program.variable(0, 1)
            for node in range(inst.num_nodes):
                program.at_most(self.at.in_stage(node, stage), used)
            work.add(used, entry)
        else:
            work.add(entry)
        for node in np.flatnonzero(inst.recompute_bytes).tolist():
            held = self.at.in_stage(node, stage)
            if held.known and not held.constant:
                continue
            chosen = program.variable(0, 1, integer=True)
            program.at_most(chosen, held)
            self.recomputed[stage][node] = chosen
            seconds = float(inst.recompute_s[node]) / inst.kinds[kind].speed
            work.add(chosen, seconds * self.unit)
        return work

    def _prefix_rows(self, largest: Affine, boundaries: list[Affine]) -> None:
        """Add what the stages on either side of a boundary can do together: a better bound."""
        inst = self.inst
        weights = inst.reference * self.unit
        entries = 0.0 if inst.problem.allow_empty else 1.0
        for boundary in range(1, inst.num_stages):
            before = Affine()
            for weight, inside in zip(weights.tolist(), self.at.y[boundary], strict=True):
                if weight and inside != 0.0:
                    before.add(inside, weight)
            after = Affine(float(weights.sum())).add(before, -1.0)
            for side, devices in ((before, self.order[:boundary]), (after, self.order[boundary:])):
                paces = inst.pace[list(devices)]
                side.add(entries * float(paces @ inst.entry[list(devices)]) * self.unit)
                if boundaries and not inst.problem.overlap:
                    side.add(boundaries[boundary - 1], float(paces.min()))
                limit = Affine().add(largest, float(paces.sum()))
                need(self.program.at_most(side, limit))

    # ------------------------------------------------------------ memory

    def _memory_rows(self) -> None:
        inst, program = self.inst, self.program
        for stage, kind in enumerate(self.order):
            budget = inst.kinds[kind].budget_bytes
            if math.isinf(budget):
                continue
            flight = float(inst.in_flight[stage])
            total = self.at.held(stage, (inst.static + flight * inst.saved).tolist())
            for node, chosen in self.recomputed[stage].items():
                total.add(chosen, -flight * float(inst.recompute_bytes[node]))
            for shared in inst.problem.shared:
                total.add(self.at.any(stage, shared.nodes), shared.static_bytes)
            total.add(self._workspace(stage))
            factor = float(inst.factor[stage])
            if factor and stage:
                for net, crossing in self.crossing[stage - 1].items():
                    total.add(crossing, factor * float(inst.received[net]))
            if factor and stage < inst.num_stages - 1:
                for net, crossing in self.crossing[stage].items():
                    total.add(crossing, factor * float(inst.returned[net]))
            scaled = Affine().add(total, SCALE / max(budget, 1.0))
            need(program.at_most(scaled, SCALE * min(budget, 1.0)))

    def _workspace(self, stage: int) -> Affine:
        """Return the largest workspace of a stage."""
        space = self.inst.workspace.tolist()
        held = [
            (each, space[node])
            for node in np.flatnonzero(self.inst.workspace).tolist()
            if not (each := self.at.in_stage(node, stage)).known or each.constant
        ]
        if not held:
            return Affine()
        low = max((value for each, value in held if each.known), default=0.0)
        if all(each.known for each, _ in held):
            return Affine(low)
        # In units of the largest, so that the variable is of the order of 1.
        most = max(value for _, value in held)
        result = self.program.variable(low / most, 1)
        for each, value in held:
            if value > low:
                self.program.at_most(Affine().add(each, value / most), result)
        return Affine().add(result, most)

    # ------------------------------------------------------------ reading a solution

    def recompute(self, values: Sequence[float]) -> tuple[int, ...]:
        """Return the nodes that are recomputed."""
        return tuple(
            sorted(
                node
                for chosen in self.recomputed
                for node, variable in chosen.items()
                if values[next(iter(variable.terms))] > 0.5
            )
        )
