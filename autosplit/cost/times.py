"""Seconds of layers inside a stage, from what they took alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from autosplit.graph import Graph
from autosplit.types import StructureFactor


@dataclass(frozen=True)
class LayerTimes:
    """Times of one micro-batch on the device that was measured.

    A layer measured alone also pays for being entered; inside a stage only the stage does. So
    ``offset_s`` is taken from every layer and given back once per stage. Where the profile was
    calibrated, what is left is scaled to what exported code takes.
    """

    graph: Graph

    @cached_property
    def forward_s(self) -> tuple[float, ...]:
        """Forward seconds of each layer inside a stage."""
        return self._inside(self._forward_alone, self._forward_factors)

    @cached_property
    def backward_s(self) -> tuple[float, ...]:
        """Backward seconds of each layer inside a stage; 0 in inference."""
        return self._inside(self._backward_alone, self._backward_factors)

    @cached_property
    def weight_gradient_s(self) -> tuple[float, ...]:
        """Part of each layer's backward that only its own parameters wait for."""
        training = self.graph.training
        return self._inside(
            tuple(layer.weight_gradient_s if training else 0.0 for layer in self.graph.layers),
            self._backward_factors,
        )

    @cached_property
    def entry_s(self) -> tuple[float, float]:
        """Forward and backward seconds of entering a stage."""
        forward, backward = math.fsum(self._forward_alone), math.fsum(self._backward_alone)
        share = forward / (forward + backward) if forward + backward else 0.0
        return share * self.graph.offset_s, (1 - share) * self.graph.offset_s

    @cached_property
    def total_s(self) -> float:
        """Seconds of the whole model as one stage."""
        return math.fsum((*self.forward_s, *self.backward_s, *self.entry_s))

    @cached_property
    def _forward_alone(self) -> tuple[float, ...]:
        return tuple(layer.forward.median_s for layer in self.graph.layers)

    @cached_property
    def _backward_alone(self) -> tuple[float, ...]:
        training = self.graph.training
        return tuple(layer.backward.median_s if training else 0.0 for layer in self.graph.layers)

    @cached_property
    def _forward_factors(self) -> tuple[float, ...]:
        return tuple(factor.forward for factor in self._factors)

    @cached_property
    def _backward_factors(self) -> tuple[float, ...]:
        return tuple(factor.backward for factor in self._factors)

    @cached_property
    def _factors(self) -> tuple[StructureFactor, ...]:
        known = self.graph.calibration
        return tuple(
            StructureFactor(layer.structure, 1.0, 1.0)
            if known is None
            else known.factor(layer.structure)
            for layer in self.graph.layers
        )

    def _inside(self, part: tuple[float, ...], factors: tuple[float, ...]) -> tuple[float, ...]:
        """Take the cost of entering a layer from both of its passes in proportion."""
        whole = zip(self._forward_alone, self._backward_alone, strict=True)
        return tuple(
            seconds * factor * max(0.0, 1 - self.graph.offset_s / (forward + backward))
            if seconds
            else 0.0
            for seconds, factor, (forward, backward) in zip(part, factors, whole, strict=True)
        )
