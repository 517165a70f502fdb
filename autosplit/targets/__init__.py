"""Frameworks that run an export. A new one is a file here and its line below."""

from autosplit.targets.base import TARGETS, Target
from autosplit.targets.torch import TorchTarget

TARGETS.register("torch")(TorchTarget())

__all__ = ["TARGETS", "Target", "TorchTarget"]
