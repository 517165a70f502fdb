"""Solvers of the chain problem. One file each, filed in ``SOLVERS``."""
