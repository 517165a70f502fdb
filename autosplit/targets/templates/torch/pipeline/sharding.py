"""Parameters, gradients and optimizer state divided over the replicas (FSDP).

Each repeated block of a stage is gathered as a whole when the first micro-batch reaches it, and
kept until the last backward of an optimizer step. There, and nowhere else, gradients are reduced:
replicas may run different numbers of micro-batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from .errors import PipelineError
from .replicas import Replicas
from .torch_stage import TorchStage

SHARDINGS = ("replicate", "fsdp")


def build_stages(
    factories: Sequence[Callable[[], nn.Module]],
    numbers: Iterable[int],
    device: torch.device,
    replicas: Replicas,
    sharding: str,
) -> dict[int, nn.Module]:
    """Build the stages of a rank, by number; weights are to be loaded.

    Raises
    ------
    PipelineError
        If parameters shall be divided and there is one replica.
    """
    if sharding == "replicate":
        return {number: factories[number]().to(device) for number in numbers}
    if replicas.mesh is None:
        raise PipelineError(
            "--sharding fsdp divides parameters over replicas, and this pipeline runs as one: "
            "start several with REPLICAS=N ./launch.sh, or plan them"
        )
    found = {}
    for number in numbers:
        # Memory is allocated for this rank's part alone.
        with torch.device("meta"):
            stage = factories[number]()
        _shard(stage, replicas.mesh["dp"])
        found[number] = stage.to_empty(device=device)
    return found


def is_divided(parameter: Tensor) -> bool:
    """Return whether a replica holds only a part of a tensor."""
    return isinstance(parameter, DTensor)


def local(tensor: Tensor) -> Tensor:
    """Return the part of a tensor that is here, with the memory of the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all replicas, on the CPU where it was divided.

    All replicas call it for the same tensors in the same order.
    """
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor


def part_of(full: Tensor, like: Tensor) -> Tensor:
    """Return that part of a whole tensor which ``like`` holds of one of the same shape."""
    if not isinstance(like, DTensor) or full.shape != like.shape:
        return full
    mesh = like.device_mesh
    parts = full.chunk(mesh.size(), 0)
    rank = mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else full[:0]


def divided_like(full: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor divided as ``like`` is, if it has the same shape."""
    if not isinstance(like, DTensor) or full.shape != like.shape:
        return full
    return DTensor.from_local(
        part_of(full, like).to(local(like).device).contiguous(),
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


class Reduction:
    """Says when the gradients of a stage are reduced, and when its parameters are let go."""

    def __init__(self, stage: nn.Module) -> None:
        self.modules = [module for module in stage.modules() if isinstance(module, FSDPModule)]
        self._left = 0

    def begin(self, backwards: int) -> None:
        """Reduce in the last of so many backwards; in none where that is 0."""
        self._left = backwards
        self._switch(False)

    def before_backward(self) -> None:
        """Count a backward that is about to run."""
        self._left -= 1
        if self._left == 0:
            self._switch(True)

    def release(self) -> None:
        """Keep no more than this replica's part in memory."""
        for module in self.modules:
            module.reshard()

    def _switch(self, on: bool) -> None:
        for module in self.modules[:1]:  # the stage itself, and with it those inside
            module.set_requires_gradient_sync(on)
            module.set_reshard_after_backward(on)
            module.set_is_last_backward(on)


class _Hidden(nn.Module):
    """Runs a module that torch's schedules must not find.

    In one they know they let go of parameters, drop gradients when a schedule is new, and reduce
    gradients at the end of each, though replicas may run different numbers of schedules.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._run = (module,)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._run[0](*args, **kwargs)


class DividedStage(TorchStage):
    """A stage that tells its ``Reduction`` of each backward."""

    def __init__(self, reduction: Reduction, module: nn.Module, *args: Any, **kwargs: Any) -> None:
        super().__init__(_Hidden(module), *args, **kwargs)
        self.reduction = reduction

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one backward."""
        self.reduction.before_backward()
        return super().backward_one_chunk(*args, **kwargs)


def _shard(stage: nn.Module, mesh: DeviceMesh) -> None:
    # Numbers cannot be divided; each replica holds them, and their gradients are summed.
    numbers = {parameter for parameter in stage.parameters() if parameter.dim() == 0}
    more: dict[str, Any] = {"ignored_params": numbers} if numbers else {}
    for module in (*_blocks(stage), stage):
        fully_shard(module, mesh=mesh, reshard_after_forward=False, **more)


def _blocks(stage: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost members of lists that are called as a whole and share nothing."""
    uses = Counter(id(p) for _, p in stage.named_parameters(remove_duplicate=False))
    inside: set[nn.Module] = set()
    for holder in stage.modules():
        if holder in inside or not isinstance(
            holder, (nn.ModuleList, nn.ModuleDict, nn.Sequential)
        ):
            continue
        for block in holder.children():
            own = Counter(id(p) for _, p in block.named_parameters(remove_duplicate=False))
            alone = all(uses[key] == count for key, count in own.items())
            if own and alone and any(block.children()) and _is_called(block):
                inside.update(block.modules())
                yield block


def _is_called(module: nn.Module) -> bool:
    """Return whether a module computes: one that only holds others has no ``forward``."""
    return type(module).forward is not nn.Module.forward
