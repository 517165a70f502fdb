"""The chain problem that every solver answers, and the answer.

Nodes of a directed acyclic graph go to stages 0..S-1 such that no edge points to an earlier
stage and no stage is empty. Everything here is numbers: names, schedules and devices have been
translated by the cost model, so that a solver is a pure function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autosplit.checks import require, require_finite
from autosplit.registry import Registry

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


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
        require(self, len(set(self.pins)) == len(self.pins), "a net has a pin twice")
        require_finite(self, "volume", "messages", "returned")
        require(self, self.returned <= self.volume, "a net returns more than its volume")


@dataclass(frozen=True, slots=True)
class Shared:
    """Bytes that a stage pays once when it holds any of these nodes (a tied parameter)."""

    nodes: tuple[int, ...]
    static_bytes: float

    def __post_init__(self) -> None:
        require_finite(self, "static_bytes")


@dataclass(frozen=True, slots=True)
class Link:
    """Cost of a boundary: ``volume * s_per_byte + messages * latency_s``."""

    s_per_byte: float = 0.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self, "s_per_byte", "latency_s")

    def cost(self, net: Net) -> float:
        """Return the seconds a net costs at this boundary."""
        return net.volume * self.s_per_byte + net.messages * self.latency_s


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Devices that are all alike, whose places along the chain are part of the answer.

    Parameters
    ----------
    count
        How many there are.
    speed
        Divides ``work_s``.
    budget_bytes
        Memory of each; infinite for no limit.
    work_s
        Seconds per node on this kind, measured on it; empty: ``ChainProblem.work_s / speed``.
    excluded
        Nodes that cannot run on it.
    pays
        Whether its load holds the cost of nets (a host that owns the memory pays nothing;
        ``per_device`` only).
    """

    count: int
    speed: float = 1.0
    budget_bytes: float = math.inf
    work_s: tuple[float, ...] = ()
    excluded: tuple[int, ...] = ()
    pays: bool = True

    def __post_init__(self) -> None:
        require_finite(self, "count", minimum=1)
        require_finite(self, "speed")
        require(self, self.speed > 0, "speed must be positive")
        require(self, self.budget_bytes >= 0, "budget_bytes must not be negative")
        _require_numbers(self, "work_s", self.work_s)


@dataclass(frozen=True)
class ChainProblem:
    """Smallest largest load of a chain of stages.

    Load of stage s with nodes D:

    * ``pass_through``: ``work(D) / speed[s] + x[s-1] + x[s]`` (added) or
      ``max(work(D) / speed[s], x[s-1], x[s])`` (overlap), where ``x[b]`` is the link cost of
      every net with pins on both sides of boundary b;
    * ``per_device``: ``work(D) / speed[s]`` plus the cost of every net with pins both inside
      and outside of D.

    ``work(D)`` counts ``entry_s`` and the ``recompute_s`` of each recomputed node too.

    Memory of stage s: ``static(D) + shared(D) + in_flight[s] * saved(D) + max workspace(D) +
    boundary_factor[s] * received(s) <= budget_bytes[s]``, where ``received(s)`` are the bytes
    that arrive: ``volume - returned`` of the nets over the boundary before the stage and
    ``returned`` of those over the boundary after it. A recomputed node saves
    ``recompute_bytes`` less.

    Parameters
    ----------
    work_s
        Seconds per node and micro-batch on a device of speed 1.
    entry_s
        Seconds that every stage with nodes adds to ``work(D)``, on a device of speed 1.
    edges
        ``(before, after)`` pairs; indices are in a topological order.
    speeds, in_flight, budget_bytes, boundary_factor
        One per stage; empty means 1, 1, no limit and 0.
    links
        One per boundary (S - 1); empty means that transfers are free. All alike for
        ``per_device`` and where ``kinds`` come without ``kind_links``.
    objective
        "bottleneck": the largest load. "step": ``(M - 1) * largest load + sum of loads``,
        with M = ``microbatches``.
    fixed
        ``(node, stage)`` pairs.
    apart
        Pairs of sets of nodes: no stage holds nodes of both.
    alone
        Nodes whose stage holds nothing else.
    kinds
        Devices whose order is free (S in all); replaces ``speeds`` and ``budget_bytes``.
    kind_links
        ``kind_links[a][b]``: link from a device of kind a to a following one of kind b.
    recompute_s, recompute_bytes
        Price in seconds, and saved bytes spared, of recomputing a node in backward; empty
        where recomputation is no choice.
    allow_empty
        Whether stages may stay empty (at most S devices instead of exactly S).
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
    apart: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    alone: tuple[int, ...] = ()
    communication: Literal["pass_through", "per_device"] = "pass_through"
    overlap: bool = False
    objective: Literal["bottleneck", "step"] = "bottleneck"
    microbatches: int = 1
    entry_s: float = 0.0
    kinds: tuple[DeviceKind, ...] = ()
    kind_links: tuple[tuple[Link, ...], ...] = ()
    recompute_s: tuple[float, ...] = ()
    recompute_bytes: tuple[float, ...] = ()
    allow_empty: bool = False

    def __post_init__(self) -> None:
        require_finite(self, "num_stages", "microbatches", minimum=1)
        require_finite(self, "entry_s")
        require(self, self.num_nodes > 0, "a problem needs at least one node")
        self._check_sizes()
        self._check_indices()
        self._check_devices()
        for name in _NUMBERS:
            _require_numbers(self, name, getattr(self, name))
        require(self, all(speed > 0 for speed in self.speeds), "speeds must be positive")
        require(self, all(b >= 0 for b in self.budget_bytes), "budget_bytes must not be negative")

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return len(self.work_s)

    def link(self, boundary: int) -> Link:
        """Return the link of a boundary where devices have no free order."""
        return self.links[boundary] if self.links else Link()

    def _check_sizes(self) -> None:
        per_node = _PER_NODE
        per_stage = ("speeds", "in_flight", "budget_bytes", "boundary_factor")
        for names, size in ((per_node, self.num_nodes), (per_stage, self.num_stages)):
            for name in names:
                length = len(getattr(self, name))
                require(self, length in (0, size), f"{name} has {length} entries, not {size}")
        require(
            self,
            len(self.links) in (0, self.num_stages - 1),
            f"links has {len(self.links)} entries, not {self.num_stages - 1}",
        )
        require(
            self,
            len(self.recompute_s) == len(self.recompute_bytes),
            "recompute_s and recompute_bytes go together",
        )

    def _check_indices(self) -> None:
        nodes = range(self.num_nodes)
        for before, after in self.edges:
            require(
                self,
                before in nodes and after in nodes and before < after,
                f"edge ({before}, {after}) does not follow the order of the nodes",
            )
        for net in self.nets:
            require(self, bool(net.pins), "a net needs a producer")
            require(self, all(pin in nodes for pin in net.pins), f"unknown pin in {net.pins}")
        for shared in self.shared:
            require(self, all(node in nodes for node in shared.nodes), "unknown shared node")
        stage_of: dict[int, int] = {}
        for node, stage in self.fixed:
            require(
                self,
                node in nodes and stage in range(self.num_stages),
                f"cannot fix node {node} to stage {stage}",
            )
            require(self, stage_of.setdefault(node, stage) == stage, f"node {node} is fixed twice")
        for first, second in self.apart:
            require(self, bool(first and second), "nodes are to stay apart from none")
            require(self, not set(first) & set(second), "a node cannot stay apart from itself")
        placed = (*self.alone, *(node for pair in self.apart for part in pair for node in part))
        require(self, all(node in nodes for node in placed), "unknown node alone or apart")

    def _check_devices(self) -> None:
        alike = len(set(self.links)) <= 1
        if self.communication == "per_device":
            require(self, alike and not self.kind_links, "per_device needs links that are alike")
            require(self, not self.overlap, "per_device has no overlap")
            require(self, not any(net.to_end for net in self.nets), "per_device has no to_end")
        if not self.kinds:
            require(self, not self.kind_links, "kind_links need kinds")
            return
        require(
            self,
            sum(kind.count for kind in self.kinds) == self.num_stages,
            "the kinds must hold one device per stage",
        )
        require(
            self,
            not self.speeds and not self.budget_bytes,
            "kinds replace speeds and budget_bytes",
        )
        require(self, alike, "links of kinds stand in kind_links")
        for kind in self.kinds:
            require(self, len(kind.work_s) in (0, self.num_nodes), "work_s of a kind is cut off")
            require(
                self,
                kind.pays or self.communication == "per_device",
                "only per_device knows devices that do not pay",
            )
            require(
                self,
                all(node in range(self.num_nodes) for node in kind.excluded),
                "unknown excluded node",
            )
        if self.kind_links:
            square = all(len(row) == len(self.kinds) for row in self.kind_links)
            require(
                self,
                square and len(self.kind_links) == len(self.kinds),
                "kind_links must be a square over the kinds",
            )


_PER_NODE = (
    *("static_bytes", "saved_bytes", "workspace_bytes"),
    *("recompute_s", "recompute_bytes"),
)
_NUMBERS = ("work_s", *_PER_NODE, "in_flight", "boundary_factor")


def _require_numbers(owner: object, name: str, values: Iterable[float]) -> None:
    for index, value in enumerate(values):
        require(
            owner,
            math.isfinite(value) and value >= 0,
            f"{name}[{index}] is {value}, not a finite number of at least 0",
        )


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
    kind_of
        Kind of device of each stage; empty where the problem names no kinds.
    recompute
        Nodes recomputed in backward.
    """

    stage_of: tuple[int, ...] | None
    objective_s: float
    bound_s: float
    status: Status
    solver: str
    solver_s: float
    notes: tuple[str, ...] = field(default=())
    kind_of: tuple[int, ...] = ()
    recompute: tuple[int, ...] = ()

    @property
    def gap(self) -> float:
        """Return ``(objective - bound) / objective``; 0 for a proven plan, 1 without a plan."""
        if self.stage_of is None:
            return 1.0
        if self.objective_s <= 0:
            return 0.0
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s)


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
