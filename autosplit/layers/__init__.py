"""Layers of a program: convex groups of operations, named, with a signature of their structure."""

from autosplit.layers.grouping import Granularity, Grouping, Layer, group
from autosplit.layers.work import Work

__all__ = ["Granularity", "Grouping", "Layer", "Work", "group"]
