"""Start an export with torchrun, on one node or several."""

from __future__ import annotations

from pathlib import Path
from string import Template

from autosplit.launchers.base import Launch
from autosplit.types import Artifact

_TEMPLATE = Path(__file__).parent / "templates" / "torchrun.sh.template"


class Torchrun:
    """The launcher "torchrun": ``launch.sh``."""

    def emit(self, launch: Launch) -> tuple[Artifact, ...]:
        """Return ``launch.sh``."""
        template = Template(_TEMPLATE.read_text(encoding="utf-8"))
        text = template.substitute(ranks=launch.ranks, replicas=launch.replicas)
        return (Artifact("launch.sh", text, executable=True),)
