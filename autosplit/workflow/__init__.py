"""The steps from a model to a verified pipeline, one function each.

The command line and the public API both call these. Everything heavy is imported inside, so
that planning never loads torch.
"""

from autosplit.workflow.checkpoints import merge_checkpoint, recut_checkpoint, split_checkpoint
from autosplit.workflow.exporting import export, render, stale, verify
from autosplit.workflow.files import read, read_export, read_profile, save
from autosplit.workflow.planning import compare, place, plan, profile_of, search, timeline
from autosplit.workflow.profiling import check, fit_device, profile, sweep

__all__ = [
    "check",
    "compare",
    "export",
    "fit_device",
    "merge_checkpoint",
    "place",
    "plan",
    "profile",
    "profile_of",
    "read",
    "read_export",
    "read_profile",
    "recut_checkpoint",
    "render",
    "save",
    "search",
    "split_checkpoint",
    "stale",
    "sweep",
    "timeline",
    "verify",
]
