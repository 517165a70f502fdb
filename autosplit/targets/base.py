"""What a target is: a framework that runs the stages of an export."""

from __future__ import annotations

from typing import Protocol

from autosplit.codegen import StageSource
from autosplit.program import Program
from autosplit.registry import Registry
from autosplit.stages import Routing
from autosplit.types import Artifact, ModelCode, Plan


class Target(Protocol):
    """Writes everything that stands beside the stages for one framework."""

    def emit(
        self,
        plan: Plan,
        program: Program,
        routing: Routing,
        sources: tuple[StageSource, ...],
        code: ModelCode | None = None,
    ) -> tuple[Artifact, ...]:
        """Return all text files of an export, in the order of their paths.

        Parameters
        ----------
        plan
            The plan.
        program
            The traced model.
        routing
            Which tensor goes where.
        sources
            The stages' source.
        code
            How to build the model, where stages take modules out of it as they are.
        """
        ...


TARGETS: Registry[Target] = Registry("target")
