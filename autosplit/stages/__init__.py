"""From a program and a plan to stages: what each one computes, takes and gives.

A stage is a pure function of what it takes. Which tensor goes where is kept beside the stages
in one routing table, so that a stage never sees values that only pass through.
"""

from autosplit.stages.recompute import modules_to_recompute
from autosplit.stages.split import split
from autosplit.stages.types import RoutedValue, Routing, SharedState, StageRoute, StageSpec
from autosplit.stages.whole import Whole, keep_modules

__all__ = [
    "RoutedValue",
    "Routing",
    "SharedState",
    "StageRoute",
    "StageSpec",
    "Whole",
    "keep_modules",
    "modules_to_recompute",
    "split",
]
