"""What is known of one layer alone: measured, scaled from smaller micro-batches, or modelled."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosplit.layers.kept import storage_of
from autosplit.profilers.analytic import ModelledLayer
from autosplit.profilers.quality import Quality
from autosplit.program import Program
from autosplit.types import Source, Timing


@dataclass(frozen=True)
class LayerFindings:
    """What was learnt of one layer, without a name that another layer like it does not have.

    Parameters
    ----------
    layer
        The layer it was learnt on.
    forward, backward, weight_gradient_s, workspace_bytes, source
        As in ``LayerProfile``.
    saved
        What backward keeps: ``("value", place)`` among the values the layer takes and gives, or
        ``("inside", bytes)`` of a storage that lives in it.
    value_bytes
        Bytes of the storage of each value it takes and gives.
    quality
        How good the measurement was; None where nothing was measured.
    """

    layer: str
    forward: Timing
    backward: Timing
    workspace_bytes: int
    saved: tuple[tuple[str, int], ...]
    value_bytes: tuple[int, ...]
    quality: Quality | None
    weight_gradient_s: float = 0.0
    source: Source = "measured"


def at_more_rows(found: Sequence[tuple[int, LayerFindings]], rows: int) -> LayerFindings:
    """Return what a layer costs with more rows than memory holds.

    Parameters
    ----------
    found
        One or two measurements with the rows they were made with, the larger first. Costs lie
        on the line through both, or are in proportion to rows where there is one.
    rows
        Rows to tell of.
    """
    above, large = found[0]
    below, small = found[-1]

    def at(of_large: float, of_small: float) -> float:
        if above == below:
            return of_large * rows / above
        return max(of_large, of_large + (of_large - of_small) / (above - below) * (rows - above))

    def times(of_large: Timing, of_small: Timing) -> Timing:
        return Timing(
            at(of_large.median_s, of_small.median_s),
            of_large.spread_s * rows / above,
            of_large.samples,
        )

    alike = [kind for kind, _ in large.saved] == [kind for kind, _ in small.saved]
    other = small if alike else large
    backward = times(large.backward, small.backward)
    return dataclasses.replace(
        large,
        forward=times(large.forward, small.forward),
        backward=backward,
        weight_gradient_s=min(
            backward.median_s, at(large.weight_gradient_s, small.weight_gradient_s)
        ),
        workspace_bytes=round(at(large.workspace_bytes, small.workspace_bytes)),
        saved=tuple(
            (kind, what if kind == "value" else round(at(what, less)))
            for (kind, what), (_, less) in zip(large.saved, other.saved, strict=True)
        ),
        value_bytes=tuple(
            round(at(more, less))
            for more, less in zip(large.value_bytes, small.value_bytes, strict=True)
        ),
        source="scaled",
    )


def from_work(
    name: str,
    modelled: ModelledLayer,
    values: Sequence[str],
    program: Program,
    nbytes: Callable[[str], int],
) -> LayerFindings:
    """Return what a layer costs by its work, where no micro-batch of it can be run.

    Parameters
    ----------
    name
        Of the layer.
    modelled
        What its work costs.
    values
        Names of the values it takes and gives.
    nbytes
        Gives the bytes of one of them.
    """
    places = {storage_of(program.node[value]): place for place, value in enumerate(values)}
    return LayerFindings(
        layer=name,
        forward=Timing(modelled.forward_s),
        backward=Timing(modelled.backward_s),
        workspace_bytes=modelled.workspace_bytes,
        saved=tuple(
            ("value", places[key]) if key in places else ("inside", size)
            for key, size in modelled.kept.items()
        ),
        value_bytes=tuple(map(nbytes, values)),
        quality=None,
        weight_gradient_s=modelled.weight_gradient_s,
        source="modelled",
    )
