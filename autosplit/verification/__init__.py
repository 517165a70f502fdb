"""Run an export against the original model and report the largest differences."""

from autosplit.verification.run import verify

__all__ = ["verify"]
