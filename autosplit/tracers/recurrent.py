"""Fake results of recurrent layers, whose kernels would pin every size or unroll the time."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def fake_recurrent(module: nn.RNNBase, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what ``module(*args, **kwargs)`` gives, by shape; None if that is not known.

    ``output`` is (time, batch, directions * features) or, with ``batch_first``, (batch, time,
    …); the states are (layers * directions, batch, features). Packed sequences are not known.
    """
    sequence = args[0] if args else kwargs.get("input")
    if not isinstance(sequence, torch.Tensor) or sequence.dim() not in (2, 3):
        return None
    directions = 2 if module.bidirectional else 1
    features = module.proj_size or module.hidden_size
    batch_dim = 0 if module.batch_first else 1
    batch = [sequence.shape[batch_dim]] if sequence.dim() == 3 else []
    layers = module.num_layers * directions
    anchor = sequence.flatten()[0] + sum(weight.flatten()[0] for weight in module.parameters())

    def result(*shape: Any) -> torch.Tensor:
        return torch.empty(shape, dtype=anchor.dtype, device=anchor.device) + anchor

    output = result(*sequence.shape[:-1], directions * features)
    hidden = result(layers, *batch, features)
    if isinstance(module, nn.LSTM):
        return output, (hidden, result(layers, *batch, module.hidden_size))
    return output, hidden
