"""Integer linear programs through PuLP, the only file that imports it: CBC and HiGHS.

``prefix_model`` says what the program is; here it is handed to a solver and read back. Objectives
are recomputed from the plan, since solvers print few digits; whether a plan is proven stands in
PuLP's ``sol_status`` alone, since its status calls a time limit optimal as well.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import math
import os
import re
import sys
import tempfile
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from autosplit.errors import AutosplitError
from autosplit.solvers.base import SOLVERS, ChainProblem, Solution, Status
from autosplit.solvers.bounds import simple_bound
from autosplit.solvers.evaluate import evaluate
from autosplit.solvers.instance import Instance
from autosplit.solvers.linear import Affine, LinearProgram
from autosplit.solvers.placement import ImpossibleError, TooLargeError
from autosplit.solvers.prefix_model import PrefixModel

OPEN_PER_SECOND = 2000
"""Open positions of nodes per second of the time limit above which a program is not tried."""

EXACT = 1e-6
"""Relative difference of objectives below which the tolerances of a solver cannot tell."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Outcome:
    """What a solver says about one program: its state, a bound and whether values are set."""

    status: Status
    bound: float


class _PulpSolver(ABC):
    """Common part of the solvers behind PuLP."""

    name: ClassVar[str]

    @classmethod
    @abstractmethod
    def is_available(cls) -> bool:
        """Return whether PuLP and the solver are installed."""

    @abstractmethod
    def run(self, program: Any, time_limit_s: float, gap: float) -> _Outcome:
        """Solve a PuLP program in place."""

    def solve(
        self,
        problem: ChainProblem,
        *,
        time_limit_s: float,
        gap: float = 0.0,
        incumbent: Solution | None = None,
    ) -> Solution:
        """Answer ``problem``, over every order of the devices where it is free.

        Raises
        ------
        AutosplitError
            If the solver is missing or dies.
        """
        if not self.is_available():
            raise AutosplitError(
                f"solver {self.name} is not installed", hint="choose --solver dp or auto"
            )
        started = time.monotonic()
        inst = Instance(problem)
        floor = simple_bound(inst)
        best = incumbent if incumbent and incumbent.stage_of is not None else None
        bounds = []
        for order in inst.device_orders():
            left = started + time_limit_s - time.monotonic()
            if left <= 0:
                bounds.append(floor)
                break
            found, bound = self._solve_order(inst, order, left, gap, best)
            bounds.append(max(bound, floor))
            if found is not None and (best is None or found.objective_s < best.objective_s):
                best = found
        seconds = time.monotonic() - started
        if best is None:
            status: Status = "infeasible" if math.isinf(min(bounds)) else "unknown"
            return Solution(None, math.inf, min(bounds), status, self.name, seconds)
        value = best.objective_s
        bound = min(*bounds, value)
        exact = bound >= value * (1 - EXACT)
        return dataclasses.replace(
            best,
            bound_s=value if exact else bound,
            status="optimal" if exact else "feasible",
            solver=self.name,
            solver_s=seconds,
            notes=(),
        )

    def _solve_order(
        self,
        inst: Instance,
        order: tuple[int, ...],
        time_limit_s: float,
        gap: float,
        best: Solution | None,
    ) -> tuple[Solution | None, float]:
        """Solve for devices in one order; return a plan better than ``best`` and a bound.

        The bound is infinite when no plan exists, or none as good as ``best``.
        """
        known = best.objective_s if best else math.inf
        started = time.monotonic()
        try:
            model = PrefixModel(inst, order, known, OPEN_PER_SECOND * time_limit_s)
        except ImpossibleError:
            return None, math.inf
        except TooLargeError:
            return None, -math.inf
        program, variables = _translate(model.program)
        left_s = time_limit_s - (time.monotonic() - started)
        if left_s <= 0:
            return None, -math.inf
        outcome = self._guarded(program, left_s, gap)
        if outcome.status == "infeasible":
            return None, math.inf
        bound = outcome.bound / model.unit
        if outcome.status == "unknown":
            return None, bound
        values = [variable.value() or 0.0 for variable in variables]
        plan = _solution(inst, order, model.at.stages(values), model.recompute(values), self.name)
        if plan is None:
            return None, bound
        if outcome.status == "optimal" and gap == 0:
            return plan, plan.objective_s
        return plan, min(bound, plan.objective_s)

    def _guarded(self, model: Any, time_limit_s: float, gap: float) -> _Outcome:
        try:
            return self.run(model, time_limit_s, gap)
        except AutosplitError:
            raise
        except Exception as error:
            raise AutosplitError(
                f"solver {self.name} failed",
                cause=f"{type(error).__name__}: {error}",
                hint="choose --solver dp",
            ) from error


def _translate(model: LinearProgram) -> tuple[Any, list[Any]]:
    """Return the program in PuLP, and its variables."""
    import pulp

    program = pulp.LpProblem("chain", pulp.LpMinimize)
    with _old_ways():
        variables = [
            pulp.LpVariable(
                f"x{index}",
                each.low,
                each.high,
                pulp.LpInteger if each.integer else pulp.LpContinuous,
            )
            for index, each in enumerate(model.variables)
        ]

    def expression(value: Affine) -> Any:
        terms = [(variables[index], factor) for index, factor in value.terms.items()]
        return pulp.LpAffineExpression(terms)

    program += expression(model.objective)
    for row in model.rows:
        program += pulp.LpConstraint(expression(row), pulp.LpConstraintLE, rhs=-row.constant)
    return program, variables


def _solution(
    inst: Instance,
    order: tuple[int, ...],
    stage_of: tuple[int, ...],
    recompute: tuple[int, ...],
    name: str,
) -> Solution | None:
    """Return a plan with its recomputed objective; None where rounding broke a rule."""
    problem = inst.problem
    kinds = order if problem.kinds else ()
    result = evaluate(problem, stage_of, kinds, recompute)
    if result.violations:
        return None
    return Solution(
        stage_of=stage_of,
        objective_s=result.objective_s,
        bound_s=0.0,
        status="feasible",
        solver=name,
        solver_s=0.0,
        kind_of=kinds,
        recompute=recompute,
    )


@SOLVERS.register("cbc")
class Cbc(_PulpSolver):
    """CBC, the solver that comes with PuLP."""

    name = "cbc"

    @classmethod
    def is_available(cls) -> bool:
        """Return whether PuLP brings a CBC that runs here."""
        if importlib.util.find_spec("pulp") is None:
            return False
        import pulp

        with _old_ways():
            return bool(pulp.PULP_CBC_CMD(msg=False).available())

    def run(self, program: Any, time_limit_s: float, gap: float) -> _Outcome:
        """Solve; the bound after a time limit stands in the log alone."""
        import pulp

        with tempfile.TemporaryDirectory() as folder, _old_ways():
            log = Path(folder) / "cbc.log"
            program.solve(
                pulp.PULP_CBC_CMD(
                    msg=False, threads=1, gapRel=gap, timeLimit=time_limit_s, logPath=str(log)
                )
            )
            text = log.read_text(errors="replace") if log.exists() else ""
        bound = -math.inf
        if match := re.search(r"Lower bound:\s+(\S+)", text):
            # The log prints three decimals.
            bound = float(match[1]) - 0.0005
        return _Outcome(_status(program), bound)


@SOLVERS.register("highs")
class Highs(_PulpSolver):
    """HiGHS through ``highspy``."""

    name = "highs"

    @classmethod
    def is_available(cls) -> bool:
        """Return whether PuLP and highspy are installed."""
        return all(importlib.util.find_spec(name) for name in ("pulp", "highspy"))

    def run(self, program: Any, time_limit_s: float, gap: float) -> _Outcome:
        """Solve and read the bound from the solver object.

        Raises
        ------
        RuntimeError
            If HiGHS stops with an error of its own, which PuLP does not tell.
        """
        import pulp

        solver = pulp.HiGHS(msg=False, threads=1, gapRel=gap, timeLimit=time_limit_s)
        with _stdout_closed():
            program.solve(solver)
        bound = -math.inf
        with contextlib.suppress(AttributeError):
            model = program.solverModel
            if "Error" in model.getModelStatus().name:
                raise RuntimeError(model.getModelStatus().name)
            bound = float(model.getInfo().mip_dual_bound)
        return _Outcome(_status(program), bound)


@contextlib.contextmanager
def _old_ways() -> Iterator[None]:
    """Use what PuLP 3.3 announces to replace by what PuLP 2 does not have, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


@contextlib.contextmanager
def _stdout_closed() -> Iterator[None]:
    """Send what a C library prints to nowhere: stdout belongs to data."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


@SOLVERS.register("ilp")
class BestIlp:
    """HiGHS where it is installed, else CBC."""

    @classmethod
    def is_available(cls) -> bool:
        """Return whether either is there."""
        return Highs.is_available() or Cbc.is_available()

    def solve(
        self,
        problem: ChainProblem,
        *,
        time_limit_s: float,
        gap: float = 0.0,
        incumbent: Solution | None = None,
    ) -> Solution:
        """Answer with the faster one of the two that are there, with the other where it fails."""
        if not Highs.is_available():
            return Cbc().solve(problem, time_limit_s=time_limit_s, gap=gap, incumbent=incumbent)
        started = time.monotonic()
        try:
            return Highs().solve(problem, time_limit_s=time_limit_s, gap=gap, incumbent=incumbent)
        except AutosplitError as error:
            left_s = time_limit_s - (time.monotonic() - started)
            if left_s <= 0 or not Cbc.is_available():
                raise
            answer = Cbc().solve(problem, time_limit_s=left_s, gap=gap, incumbent=incumbent)
            note = f"{error.message} ({error.cause}), and cbc took its place"
            return dataclasses.replace(answer, notes=(*answer.notes, note))


def _status(program: Any) -> Status:
    """Translate PuLP's solution status; its plain status calls time limits optimal."""
    import pulp

    if program.sol_status == pulp.LpSolutionOptimal:
        return "optimal"
    if program.sol_status == pulp.LpSolutionIntegerFeasible:
        return "feasible"
    if program.status == pulp.LpStatusInfeasible:
        return "infeasible"
    return "unknown"
