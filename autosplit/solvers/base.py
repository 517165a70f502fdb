"""The chain problem that every solver answers, and the answer.

Nodes of a directed acyclic graph go to stages 0..S-1 such that no edge points to an earlier
stage and no stage is empty. Everything here is numbers: names, schedules and devices have been
translated by the cost model, so that a solver is a pure function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from autosplit.checks import require, require_finite
from autosplit.registry import Registry


@dataclass(frozen=True, slots=True)
class Net:
    """A value with all its users: a hyperedge.

    Parameters
    ----------
    pins
        Node indices, the producer first, each once, at least two.
    volume
        Bytes that cross a boundary per micro-batch, forward plus backward.
    messages
        Transfers that cross per micro-batch (2 when a gradient comes back).
    returned
        Bytes of ``volume`` that are gradients and travel backward.
    to_end
        Whether the last stage needs the value too (the model returns it): the net then has a
        further pin in the last stage, whichever nodes that holds.
    """

    pins: tuple[int, ...]
    volume: float
    messages: int = 1
    returned: float = 0.0
    to_end: bool = False

    def __post_init__(self) -> None:
        require(self, len(self.pins) + self.to_end > 1, "a net needs two pins")
        require_finite(self, "volume", "messages", "returned")


@dataclass(frozen=True, slots=True)
class Shared:
    """Bytes that a stage pays once when it holds any of these nodes (a tied parameter)."""

    nodes: tuple[int, ...]
    static_bytes: float


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of a boundary: ``volume * s_per_byte + messages * latency_s``."""

    s_per_byte: float = 0.0
    latency_s: float = 0.0

    def cost(self, net: Net) -> float:
        """Return the seconds a net costs at this boundary."""
        return net.volume * self.s_per_byte + net.messages * self.latency_s


@dataclass(frozen=True)
class ChainProblem:
    """Smallest largest load of a chain of stages.

    Load of stage s with nodes D:

    * ``pass_through``: ``work(D) / speed[s] + x[s-1] + x[s]`` (added) or
      ``max(work(D) / speed[s], x[s-1], x[s])`` (overlap), where ``x[b]`` is the link cost of
      every net with pins on both sides of boundary b;
    * ``per_device``: ``work(D) / speed[s]`` plus the cost of every net with pins both inside
      and outside of D.

    Memory of stage s: ``static(D) + shared(D) + in_flight[s] * saved(D) + max workspace(D) +
    boundary_factor[s] * received(s) <= budget_bytes[s]``, where ``received(s)`` are the bytes
    that arrive: ``volume - returned`` of the nets over the boundary before the stage and
    ``returned`` of those over the boundary after it.

    Parameters
    ----------
    work_s
        Seconds per node and micro-batch on a device of speed 1.
    entry_s
        Seconds that every stage adds to ``work(D)``, on a device of speed 1.
    edges
        ``(before, after)`` pairs; indices are in a topological order.
    objective
        "bottleneck": the largest load. "step": ``(M - 1) * largest load + sum of loads``,
        with M = ``microbatches``.
    fixed
        ``(node, stage)`` pairs.
    """

    num_stages: int
    work_s: tuple[float, ...]
    edges: tuple[tuple[int, int], ...]
    nets: tuple[Net, ...] = ()
    speeds: tuple[float, ...] = ()
    links: tuple[Link, ...] = ()
    static_bytes: tuple[float, ...] = ()
    saved_bytes: tuple[float, ...] = ()
    workspace_bytes: tuple[float, ...] = ()
    shared: tuple[Shared, ...] = ()
    in_flight: tuple[int, ...] = ()
    budget_bytes: tuple[float, ...] = ()
    boundary_factor: tuple[float, ...] = ()
    fixed: tuple[tuple[int, int], ...] = ()
    communication: Literal["pass_through", "per_device"] = "pass_through"
    overlap: bool = False
    objective: Literal["bottleneck", "step"] = "bottleneck"
    microbatches: int = 1
    entry_s: float = 0.0

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.work_s)


@dataclass(frozen=True, slots=True)
class Solution:
    """An answer to a chain problem.

    Parameters
    ----------
    stage_of
        Stage of each node; None when no plan was found.
    objective_s
        Objective of the plan, recomputed from the plan itself (never the solver's print).
    bound_s
        Proven lower bound of the objective.
    status
        "optimal", "feasible", "infeasible" (proven) or "unknown" (limit reached, no plan).
    solver, solver_s
        Who answered, and in how many seconds.
    """

    stage_of: tuple[int, ...] | None
    objective_s: float
    bound_s: float
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    solver: str
    solver_s: float
    notes: tuple[str, ...] = field(default=())


class Solver(Protocol):
    """A way to answer chain problems."""

    @classmethod
    def is_available(cls) -> bool:
        """Return whether its library or program is there."""
        ...

    def solve(
        self,
        problem: ChainProblem,
        *,
        time_limit_s: float,
        gap: float = 0.0,
        incumbent: Solution | None = None,
    ) -> Solution:
        """Answer ``problem`` within the limit, starting from ``incumbent`` where given."""
        ...


SOLVERS: Registry[type[Solver]] = Registry("solver")
