"""autosplit: a PyTorch model in, a verified pipeline out.

Each command of the command line has a function of the same name and meaning here::

    import autosplit

    measured = autosplit.profile("model.py:build")
    found = autosplit.plan(measured, autosplit.PlanRequest(stages=4, microbatches=16))
    autosplit.export(found, "pipeline")
    autosplit.verify("pipeline").raise_if_failed()
"""

from autosplit.errors import AutosplitError
from autosplit.profilers import ProfileOptions
from autosplit.types import ModelRef, Plan, PlanRequest, Profile, VerificationReport
from autosplit.workflow import (
    export,
    merge_checkpoint,
    plan,
    profile,
    read,
    recut_checkpoint,
    save,
    split_checkpoint,
    sweep,
    verify,
)

__version__ = "0.1.0"

__all__ = [
    "AutosplitError",
    "ModelRef",
    "Plan",
    "PlanRequest",
    "Profile",
    "ProfileOptions",
    "VerificationReport",
    "__version__",
    "export",
    "merge_checkpoint",
    "plan",
    "profile",
    "read",
    "recut_checkpoint",
    "save",
    "split_checkpoint",
    "sweep",
    "verify",
]
