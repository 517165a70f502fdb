"""A small profile and plan, made by hand, for tests that need one but measure nothing."""

from __future__ import annotations

from autosplit.serialize import digest
from autosplit.types import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Plan,
    PlanRequest,
    Profile,
    StageMemory,
    StagePlan,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
    WholeModel,
)

MIB = 2**20
NAMES = ("embed", "h.0.attn", "h.0.mlp", "h.1.attn", "h.1.mlp", "h.2.attn", "h.2.mlp", "head")
FORWARD_MS = (0.1, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 9.0)
STRUCTURES = ("E", "A", "M", "A", "M", "A", "M", "H")


def layer(index: int) -> LayerProfile:
    """Return one layer; backward takes twice the forward."""
    name = NAMES[index]
    forward_s = FORWARD_MS[index] / 1e3
    return LayerProfile(
        name=name,
        module=name,
        block=name.rpartition(".")[0] or None,
        structure=STRUCTURES[index],
        nodes=(f"node_{index}", f"node_{index}_b"),
        forward=Timing(forward_s, forward_s / 50, 12),
        backward=Timing(2 * forward_s, forward_s / 20, 12),
        saved=(index,),
        workspace_bytes=MIB,
        flops=1000 * index,
    )


def profile(**changes: object) -> Profile:
    """Return a profile of eight layers in a row, the last of them heavy."""
    fields: dict[str, object] = {
        "model": ModelRef(spec="/models/small.py:build", batch_size=4),
        "fingerprint": "0123456789abcdef",
        "device": DeviceInfo("cpu", "Xeon", 1, "2.13.0", "thread"),
        "layers": tuple(layer(index) for index in range(len(NAMES))),
        "values": tuple(
            ValueProfile(
                name=f"value_{index}",
                producer=NAMES[index],
                consumers=NAMES[index + 1 : index + 2],
                nbytes=4096,
                shape=("batch", 256),
                dtype="float32",
                needs_grad=True,
                output=index == len(NAMES) - 1,
                storage=index,
            )
            for index in range(len(NAMES))
        ),
        "states": tuple(
            StateProfile(f"{name}.weight", "parameter", 3 * MIB, True, (name,)) for name in NAMES
        ),
        "storages": tuple(StorageProfile(index, 2 * MIB) for index in range(len(NAMES))),
        "whole": WholeModel(0.018, 0.036, 1.004, 1e-5),
    }
    return Profile(**{**fields, **changes})  # type: ignore[arg-type]


def stage(first: int, last: int, rank: int, idle: float, in_flight: int) -> StagePlan:
    """Return a stage of the layers ``first`` to ``last``, counted from 0."""
    forward_s = sum(FORWARD_MS[first : last + 1]) / 1e3
    count = last - first + 1
    return StagePlan(
        layers=NAMES[first : last + 1],
        rank=rank,
        device=None,
        forward_s=forward_s,
        backward_s=2 * forward_s,
        send_s=1e-5,
        in_flight=in_flight,
        memory=StageMemory(
            parameters_bytes=count * 3 * MIB,
            gradients_bytes=count * 3 * MIB,
            optimizer_bytes=count * 6 * MIB,
            activations_bytes=in_flight * count * 2 * MIB,
            boundary_bytes=8192,
            workspace_bytes=MIB,
        ),
        idle=idle,
    )


def plan(**changes: object) -> Plan:
    """Return the best two stages of the profile."""
    source = profile()
    fields: dict[str, object] = {
        "model": source.model,
        "fingerprint": source.fingerprint,
        "profile_digest": digest(source),
        "request": PlanRequest(
            stages=2, microbatches=8, memory_bytes=256 * MIB, link_bytes_per_s=1e10, latency_s=5e-6
        ),
        "order": NAMES,
        "stages": (stage(0, 6, 0, 0.11, 2), stage(7, 7, 1, 0.11, 1)),
        "status": "optimal",
        "solver": "dp",
        "objective_s": 0.243,
        "bottleneck_s": 0.0273,
        "bound_s": 0.243,
        "gap": 0.0,
        "solver_s": 0.004,
        "step_s": 0.246,
        "single_s": 0.434,
        "notes": ("layer head alone is 50 % of the total: no plan beats 2.01×",),
        "nodes": tuple(item.nodes for item in source.layers),
    }
    return Plan(**{**fields, **changes})  # type: ignore[arg-type]
