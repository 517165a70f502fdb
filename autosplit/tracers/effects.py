"""What a call did besides returning: memory it wrote to, and the global state it ran in."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from autosplit.program import Ambient


def silently_written(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[torch.Tensor]:
    """Return the statistics that a normalisation updates without raising their version."""
    name = getattr(func, "__name__", "")
    if name not in ("batch_norm", "instance_norm"):
        return []
    flag = "training" if name == "batch_norm" else "use_input_stats"
    if not kwargs.get(flag, args[5] if len(args) > 5 else name == "instance_norm"):
        return []
    given = [kwargs.get("running_mean", args[1:2]), kwargs.get("running_var", args[2:3])]
    return [leaf for leaf in pytree.tree_leaves(given) if isinstance(leaf, torch.Tensor)]


def versions(value: Any) -> list[tuple[torch.Tensor, int]]:
    """Return the tensors in ``value`` with the counter that every write raises."""
    if torch.is_inference_mode_enabled():
        return []
    return [(leaf, leaf._version) for leaf in pytree.tree_leaves(value) if _counts(leaf)]


def _counts(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and not leaf.is_inference()


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number for the memory behind a living tensor; views share it."""
    return int(tensor.untyped_storage()._cdata)


def ambient_state() -> Ambient:
    """Return the grad, inference and autocast modes in force."""
    autocast = tuple(
        (kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )
    return Ambient(torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast)
