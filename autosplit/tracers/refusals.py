"""Refusals that no other tracer could lift."""

from __future__ import annotations

from autosplit.errors import TraceError


class ModelError(TraceError):
    """A model that must be changed before it can be split: no fallback is tried."""
