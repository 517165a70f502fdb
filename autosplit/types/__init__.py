"""What the steps hand to one another after tracing: profile, plan, artifacts. No torch here.

Every number carries its unit in its name: ``_s`` seconds, ``_bytes`` bytes, ``_per_s`` a rate.
Types check themselves when they are built, so an object that exists is a valid one.
"""

from autosplit.types.artifact import Artifact, ExportedStage, ModelCode
from autosplit.types.calibration import Calibration, GroupTimes, StructureFactor
from autosplit.types.cluster import Cluster, Device, LinkSpeed, PairLink
from autosplit.types.plan import (
    ASSUMED_BYTES_PER_S,
    ASSUMED_LATENCY_S,
    Plan,
    PlanRequest,
    StageMemory,
    StagePlan,
)
from autosplit.types.profile import (
    DeviceInfo,
    LayerProfile,
    ModelRef,
    Profile,
    Source,
    StateProfile,
    StorageProfile,
    Timing,
    ValueProfile,
    WholeModel,
)
from autosplit.types.sweep import LayerSample, SweepPoint
from autosplit.types.verification import BatchCheck, Comparison, VerificationReport
from autosplit.types.work import FAMILIES, Family, OperatorWork

__all__ = [
    "ASSUMED_BYTES_PER_S",
    "ASSUMED_LATENCY_S",
    "FAMILIES",
    "Artifact",
    "BatchCheck",
    "Calibration",
    "Cluster",
    "Comparison",
    "Device",
    "DeviceInfo",
    "ExportedStage",
    "Family",
    "GroupTimes",
    "LayerProfile",
    "LayerSample",
    "LinkSpeed",
    "ModelCode",
    "ModelRef",
    "OperatorWork",
    "PairLink",
    "Plan",
    "PlanRequest",
    "Profile",
    "Source",
    "StageMemory",
    "StagePlan",
    "StateProfile",
    "StorageProfile",
    "StructureFactor",
    "SweepPoint",
    "Timing",
    "ValueProfile",
    "VerificationReport",
    "WholeModel",
]
