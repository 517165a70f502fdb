"""The call tree of a stage: which calls stay bodies of their own."""

from __future__ import annotations

from autosplit.codegen.scopes import Scope, StageGraph


def flat(graph: StageGraph) -> Scope:
    """Return the stage as one scope without inner ones."""
    return Scope("stage", graph.program.calls[0], "", list(graph.nodes))
