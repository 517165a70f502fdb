"""Outputs of micro-batches back to outputs of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .errors import PipelineError
from .routing import Routing


def merge_outputs(routing: Routing, outputs: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Join the outputs of all micro-batches along their batch dimension, in order.

    An output without a batch dimension (a loss, say) is stacked: one element per micro-batch.

    Returns
    -------
    dict
        Tensors by their path in the output ("logits", "hidden.0", "output" for a lone tensor).
    """
    if not outputs:
        raise PipelineError("there are no outputs to merge")
    return {
        path or "output": _join([part[name] for part in outputs], routing.values[name].batch_dim)
        for path, name in routing.output_tree.paths()
    }


def _join(parts: list[Tensor], batch_dim: int | None) -> Tensor:
    return torch.stack(parts) if batch_dim is None else torch.cat(parts, batch_dim)
