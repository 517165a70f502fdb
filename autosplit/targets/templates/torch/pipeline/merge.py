"""Outputs of micro-batches back to outputs of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
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


def hand_over(
    outputs: Mapping[str, Tensor], source: int, target: int, device: torch.device
) -> dict[str, Tensor]:
    """Return on rank ``target`` what rank ``source`` has, on the CPU; both call it.

    Any other rank returns nothing, and need not call it.
    """
    rank = dist.get_rank()
    if rank == source:
        found = {name: tensor.cpu().contiguous() for name, tensor in outputs.items()}
        if source != target:
            kinds = [(name, tuple(t.shape), t.dtype) for name, t in found.items()]
            dist.send_object_list([kinds], target, device=device)
            for tensor in found.values():
                dist.send(_as_bytes(tensor).to(device), target)
            return {}
        return found
    if rank != target:
        return {}
    message: list[Any] = [None]
    dist.recv_object_list(message, source, device=device)
    received = {name: torch.empty(shape, dtype=dtype) for name, shape, dtype in message[0]}
    for tensor in received.values():
        there = _as_bytes(tensor).to(device)
        dist.recv(there, source)
        _as_bytes(tensor).copy_(there)
    return received


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)


def _join(parts: list[Tensor], batch_dim: int | None) -> Tensor:
    return torch.stack(parts) if batch_dim is None else torch.cat(parts, batch_dim)
