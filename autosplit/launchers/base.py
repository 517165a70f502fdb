"""What a launcher is: a way to start the processes of an export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autosplit.checks import require_finite
from autosplit.registry import Registry
from autosplit.types import Artifact


@dataclass(frozen=True, slots=True)
class Launch:
    """What is to be started.

    Parameters
    ----------
    ranks
        Number of processes of one pipeline.
    replicas
        Copies of the pipeline, unless the user says otherwise.
    """

    ranks: int
    replicas: int = 1

    def __post_init__(self) -> None:
        require_finite(self, "ranks", "replicas", minimum=1)


class Launcher(Protocol):
    """Writes the files that start an export in one kind of place."""

    def emit(self, launch: Launch) -> tuple[Artifact, ...]:
        """Return the files, for the top of the export folder."""
        ...


LAUNCHERS: Registry[Launcher] = Registry("launcher")
