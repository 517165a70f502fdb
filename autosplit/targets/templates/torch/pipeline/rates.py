"""The learning rate of each step, a pure function of its number: nothing to save or restore."""

from __future__ import annotations

import math

import torch

SCHEDULES = ("constant", "linear", "cosine")


def rate_factor(step: int, total: int, schedule: str, warmup: int, lowest: float = 0.0) -> float:
    """Return what the learning rate is multiplied by in a step, counted from 1.

    It rises linearly over ``warmup`` steps to 1 and then stays ("constant"), or falls along a
    line ("linear") or half a cosine ("cosine"), so that a step after the last of ``total`` would
    have ``lowest``: as ``LinearLR`` and ``CosineAnnealingLR`` of torch do after a warm-up.
    """
    if step <= warmup:
        return step / warmup
    if schedule == "constant":
        return 1.0
    done = min(1.0, (step - 1 - warmup) / max(1, total - warmup))
    left = 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
    return lowest + (1 - lowest) * left


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the rate of every parameter group to ``factor`` times the one it began with."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
