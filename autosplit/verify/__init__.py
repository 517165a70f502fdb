"""Run an export against the original model and report the largest differences."""

from autosplit.verify.run import verify

__all__ = ["verify"]
