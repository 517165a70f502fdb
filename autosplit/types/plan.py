"""What was asked of the planner and what it answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autosplit.checks import require, require_finite, require_known, require_unique
from autosplit.types.cluster import Cluster
from autosplit.types.profile import ModelRef

ASSUMED_BYTES_PER_S = 10e9
ASSUMED_LATENCY_S = 10e-6
"""A link where nothing is known of it: between a machine's PCIe bus and a fast network."""


@dataclass(frozen=True, slots=True)
class StageMemory:
    """Peak memory of one stage, split by use, in bytes."""

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    optimizer_bytes: int = 0
    activations_bytes: int = 0
    boundary_bytes: int = 0
    workspace_bytes: int = 0

    def __post_init__(self) -> None:
        require_finite(self, "parameters_bytes", "gradients_bytes", "optimizer_bytes")
        require_finite(self, "activations_bytes", "boundary_bytes", "workspace_bytes")

    @property
    def total_bytes(self) -> int:
        """Sum over all uses."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.activations_bytes
            + self.boundary_bytes
            + self.workspace_bytes
        )


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a plan.

    Parameters
    ----------
    layers
        Layer names in running order; never empty.
    rank
        Pipeline rank that runs the stage.
    device
        Device of that rank, by name; None when devices are all alike.
    forward_s, backward_s
        Compute time of one micro-batch on that device (recomputation included in backward).
    send_s
        Time to send what leaves the stage forward, and gradients backward, per micro-batch.
    in_flight
        Micro-batches whose activations the stage holds at its peak.
    memory
        Peak memory.
    idle
        Share of the step in which the stage's device waits (bubble), from the simulation.
    recompute
        Layers whose activations are recomputed in backward.
    """

    layers: tuple[str, ...]
    rank: int
    device: str | None
    forward_s: float
    backward_s: float
    send_s: float
    in_flight: int
    memory: StageMemory
    idle: float
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self, bool(self.layers), "a stage needs at least one layer")
        require_finite(self, "forward_s", "backward_s", "send_s", "idle")
        require_finite(self, "in_flight", minimum=1)


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What the user asked the planner for.

    Parameters
    ----------
    stages
        Number of stages.
    microbatches
        Micro-batches per step (M).
    schedule
        Name in the registry of schedules.
    memory_bytes
        Budget of each device; None for no limit.
    link_bytes_per_s, latency_s
        Speed of the link between neighbouring stages; without a rate bytes are free.
    overlap
        Whether transfers run beside compute instead of adding to it.
    optimizer
        Kind of optimizer, which sets its bytes of state ("sgd", "momentum", "adam").
    objective
        "bottleneck" (largest stage) or "step" (simulated step time).
    pins
        ``(layer, stage)`` pairs.
    solver, time_limit_s, gap
        Which solver, and when it may stop.
    ranks
        Number of devices; None: one for each stage, half as many where the schedule runs two
        stages on each.
    cluster
        The devices, where they are not all alike; their order is part of the answer.
        ``memory_bytes``, ``link_bytes_per_s`` and ``latency_s`` fill in what it leaves open.
    recompute
        Whether activations are computed again in backward: never, of all layers, or of those
        where it pays ("auto").
    together
        Sets of layers (or module paths) that no boundary may divide; a sole name with patterns
        stands for each module that fits it.
    apart
        Sets of layers (or module paths) of which no two share a stage.
    alone
        Sets of layers (or module paths), each with a stage that holds nothing else.
    boundaries
        First layer (or module path) of each stage but the first, to be evaluated instead of
        searched.
    granularity
        Smallest piece that may stand alone: "layer", "block" (never cut inside a block), or "op"
        (cut inside layers too, where the profile is of operations).
    replicas
        Copies of the pipeline, each on devices and data of its own.
    sharding
        Whether each replica holds parameters, gradients and optimizer state of its stages whole
        ("replicate"), or they are divided over the replicas ("fsdp").
    link_assumed
        Whether the speed of the links is a guess rather than what the user said.
    """

    stages: int
    microbatches: int
    schedule: str = "1f1b"
    memory_bytes: int | None = None
    link_bytes_per_s: float | None = None
    latency_s: float = 0.0
    overlap: bool = False
    optimizer: str = "adam"
    objective: Literal["bottleneck", "step"] = "step"
    pins: tuple[tuple[str, int], ...] = ()
    solver: str = "auto"
    time_limit_s: float = 60.0
    gap: float = 0.0
    ranks: int | None = None
    cluster: Cluster | None = None
    recompute: Literal["none", "auto", "all"] = "none"
    together: tuple[tuple[str, ...], ...] = ()
    boundaries: tuple[str, ...] = ()
    granularity: Literal["op", "layer", "block"] = "layer"
    replicas: int = 1
    sharding: Literal["replicate", "fsdp"] = "replicate"
    link_assumed: bool = False
    apart: tuple[tuple[str, ...], ...] = ()
    alone: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        require_finite(self, "stages", "microbatches", "ranks", "replicas", minimum=1)
        require_finite(self, "memory_bytes", "latency_s", "time_limit_s", "gap")
        if self.link_bytes_per_s is not None:
            require(self, self.link_bytes_per_s > 0, "link_bytes_per_s must be positive")


@dataclass(frozen=True)
class Plan:
    """Stage boundaries and what they promise.

    Parameters
    ----------
    model, fingerprint
        Model and traced program the plan was made for.
    profile_digest
        Digest of the profile, so that a plan for another profile is refused.
    request
        What was asked for.
    order
        Every layer of the profile, once; stages hold each exactly once.
    stages
        Stages in pipeline order.
    status
        "optimal" (proven) or "feasible" (a limit was reached first).
    solver
        Solver that gave the answer.
    bottleneck_s
        Load of the busiest stage per micro-batch.
    bound_s
        Proven lower bound of the objective.
    gap
        (objective - bound) / objective.
    solver_s
        Seconds in the solver.
    step_s
        Simulated time of a training step.
    sync_s
        Part of the step in which gradients are summed: of parameters on several stages, and of
        replicas.
    stopped
        Why there is no proof: the time limit; the gap that was asked for; the size of the
        programs that a proof takes ("size"); memory that solvers do not count ("memory");
        several stages on each device, for which only a bound is known ("chunks"); or a plan
        made by hand whose simulated step is shorter ("simulation").
    single_s
        Time of the same step on one device, for the speed-up.
    notes
        Remarks for the user ("layer head alone is 61 % of the total").
    nodes
        Operations of each layer of ``order`` in the program, so that a plan can be exported
        without its profile.
    profile_path
        Absolute path of the profile; while it is there it must still have ``profile_digest``.
    """

    model: ModelRef
    fingerprint: str
    profile_digest: str
    request: PlanRequest
    order: tuple[str, ...]
    stages: tuple[StagePlan, ...]
    status: Literal["optimal", "feasible"]
    solver: str
    objective_s: float
    bottleneck_s: float
    bound_s: float
    gap: float
    solver_s: float
    step_s: float
    single_s: float
    notes: tuple[str, ...] = ()
    nodes: tuple[tuple[str, ...], ...] = ()
    profile_path: str | None = None
    sync_s: float = 0.0
    stopped: Literal["time", "gap", "size", "memory", "chunks", "simulation"] | None = None

    def __post_init__(self) -> None:
        require_finite(
            self,
            *(
                "objective_s",
                "bottleneck_s",
                "bound_s",
                "gap",
                "solver_s",
                "step_s",
                "single_s",
                "sync_s",
            ),
        )
        require(self, bool(self.stages), "a plan needs at least one stage")
        placed = [name for stage in self.stages for name in stage.layers]
        require_unique(self, "layer", placed)
        require_known(self, "layer", placed, set(self.order))
        missing = set(self.order) - set(placed)
        require(self, not missing, f"layers without a stage: {', '.join(sorted(missing)[:5])}")
        if self.nodes:
            require(self, len(self.nodes) == len(self.order), "nodes must name every layer's")
            require_unique(self, "node", (name for nodes in self.nodes for name in nodes))

    @property
    def memory_by_rank(self) -> tuple[int, ...]:
        """Peak bytes of each rank: all of its stages."""
        held: dict[int, int] = {}
        for stage in self.stages:
            held[stage.rank] = held.get(stage.rank, 0) + stage.memory.total_bytes
        return tuple(held[rank] for rank in sorted(held))

    @property
    def stage_of_node(self) -> dict[str, int]:
        """Stage of each operation of the program."""
        stage_of = {name: k for k, stage in enumerate(self.stages) for name in stage.layers}
        pairs = zip(self.order, self.nodes, strict=True)
        return {node: stage_of[layer] for layer, nodes in pairs for node in nodes}
