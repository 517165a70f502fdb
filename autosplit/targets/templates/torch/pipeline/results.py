"""What one step computed, written for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from .sharding import whole


def save_dump(
    stages: Mapping[int, nn.Module], losses: Sequence[Tensor], folder: Path, rank: int
) -> None:
    """Write losses, gradients and buffers of this rank to ``rank_R.safetensors``.

    Keys are ``loss:MICROBATCH``, ``gradient:STAGE:NAME`` and ``buffer:STAGE:NAME``; a parameter
    without a gradient has no key.
    """
    found = {f"loss:{number}": loss for number, loss in enumerate(losses)}
    for index, stage in stages.items():
        for name, parameter in stage.named_parameters():
            if parameter.grad is not None:
                found[f"gradient:{index}:{name}"] = parameter.grad
        for name, buffer in stage.named_buffers():
            found[f"buffer:{index}:{name}"] = buffer
    folder.mkdir(parents=True, exist_ok=True)
    dense = {name: _plain(tensor) for name, tensor in found.items()}
    save_file(dense, folder / f"rank_{rank}.safetensors")


def _plain(tensor: Tensor) -> Tensor:
    return whole(tensor.detach()).cpu().clone(memory_format=torch.contiguous_format)
