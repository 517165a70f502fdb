"""Solvers of the chain problem. One file each, filed in ``SOLVERS``."""

from __future__ import annotations

from autosplit.solvers import downset_dp, ilp
from autosplit.solvers.base import SOLVERS, ChainProblem, Solution
from autosplit.solvers.portfolio import solve

__all__ = ["SOLVERS", "ChainProblem", "Solution", "downset_dp", "ilp", "solve"]
