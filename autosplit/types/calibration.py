"""How the exported code of some groups of layers runs, against the layers that were measured."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from autosplit.checks import require, require_finite


@dataclass(frozen=True, slots=True)
class GroupTimes:
    """A group of layers, timed as exported code in turn with its layers.

    Parameters
    ----------
    layers
        Names, in running order.
    predicted_forward_s, predicted_backward_s
        What the layers promise for them as one stage.
    forward_s, backward_s
        What their exported code took.
    """

    layers: tuple[str, ...]
    predicted_forward_s: float
    predicted_backward_s: float
    forward_s: float
    backward_s: float

    def __post_init__(self) -> None:
        require(self, bool(self.layers), "a group needs a layer")
        require_finite(
            self, "predicted_forward_s", "predicted_backward_s", "forward_s", "backward_s"
        )

    @property
    def ratio(self) -> float:
        """Exported code in shares of the prediction; 1 where nothing was predicted."""
        return _ratio(
            self.forward_s + self.backward_s,
            self.predicted_forward_s + self.predicted_backward_s,
        )


@dataclass(frozen=True, slots=True)
class StructureFactor:
    """What the times of layers of one structure are multiplied by in a stage."""

    structure: str
    forward: float
    backward: float

    def __post_init__(self) -> None:
        require_finite(self, "forward", "backward")


@dataclass(frozen=True)
class Calibration:
    """Exported code against measured layers: groups that were timed, factors that follow.

    ``factors`` holds every structure of the profile once.
    """

    groups: tuple[GroupTimes, ...]
    factors: tuple[StructureFactor, ...]

    def __post_init__(self) -> None:
        require(self, bool(self.groups), "a calibration needs a group")

    @property
    def ratio(self) -> float:
        """Exported code of all groups in shares of the prediction."""
        return _ratio(
            math.fsum(group.forward_s + group.backward_s for group in self.groups),
            math.fsum(g.predicted_forward_s + g.predicted_backward_s for g in self.groups),
        )

    def factor(self, structure: str) -> StructureFactor:
        """Return the factors of a structure; 1 for one that was not there."""
        return self._factor.get(structure) or StructureFactor(structure, 1.0, 1.0)

    @cached_property
    def _factor(self) -> dict[str, StructureFactor]:
        return {factor.structure: factor for factor in self.factors}


def _ratio(real_s: float, predicted_s: float) -> float:
    return real_s / predicted_s if predicted_s > 0 else 1.0
