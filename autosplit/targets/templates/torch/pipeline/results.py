"""What a run leaves behind: checkpoints, and dumps of one step for comparison."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

from .weights import save_stage


def save_checkpoint(stages: Mapping[int, nn.Module], folder: Path, rank: int) -> None:
    """Write the weights of all stages into ``folder``, which appears when it is whole.

    All ranks call it. A folder of that name from an earlier run is replaced.
    """
    partial = folder.with_name(f".{folder.name}.partial")
    if rank == 0:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    dist.barrier()
    for index, stage in stages.items():
        save_stage(stage, index, partial)
    dist.barrier()
    if rank == 0:
        if folder.exists():
            shutil.rmtree(folder)
        partial.rename(folder)
    dist.barrier()


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
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
