"""The norm of all gradients of the model, over all ranks, and their scaling by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn


def gradient_norm(parameters: Iterable[nn.Parameter], device: torch.device) -> float:
    """Return the Euclidean norm over the parameters of all ranks; all ranks call it.

    Each parameter of the model must be given by one rank alone.
    """
    norms = [p.grad.detach().float().norm() for p in parameters if p.grad is not None]
    squares = torch.stack(norms).double().square().sum() if norms else torch.zeros(())
    total = squares.to(device, torch.float64)
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
