"""The norm of all gradients of the model, over all ranks, and their scaling by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn

from .sharding import is_divided, local


def gradient_norm(
    parameters: Iterable[nn.Parameter], device: torch.device, replicas: int = 1
) -> float:
    """Return the Euclidean norm over the parameters of all ranks; all ranks call it.

    Each parameter of the model must be given by one rank of a pipeline alone. The number is the
    same on every rank to the last bit: replicas that scaled differently would drift apart.
    """
    found = [parameter for parameter in parameters if parameter.grad is not None]
    norms = [local(p.grad).detach().float().norm() for p in found if p.grad is not None]
    copies = [1.0 if is_divided(p) else float(replicas) for p in found]
    total = torch.zeros((), device=device, dtype=torch.float64)
    if norms:
        squares = torch.stack(norms).double().square()
        total += (squares / squares.new_tensor(copies)).sum()
    dist.all_reduce(total)
    return math.sqrt(value) if (value := float(total)) >= 0 else math.nan


def clip_factor(norm: float, largest: float | None) -> float:
    """Return the factor that ``torch.nn.utils.clip_grad_norm_`` scales gradients by."""
    return 1.0 if largest is None else min(1.0, largest / (norm + 1e-6))


@torch.no_grad()
def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiply all gradients by ``factor``."""
    for parameter in parameters:
        if parameter.grad is not None and factor != 1.0:
            parameter.grad.mul_(factor)
