"""Copies of the pipeline that train on other rows: which is which, and what they sum.

Of P x R processes rank r is rank r mod P of the pipeline r div P. The ranks of one pipeline are
neighbours: what it sends all the time stays inside a node where it fits there, and what replicas
sum once a step may go further.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from .errors import PipelineError

_BUCKET_BYTES = 25 * 2**20
"""Gradients are summed in pieces of this size: larger ones take more memory, smaller more time."""


@dataclass(frozen=True)
class Replicas:
    """The replicas, seen from one process; by default there is one pipeline alone.

    Parameters
    ----------
    count
        Number of replicas.
    index
        That of this process.
    ranks
        Processes of one pipeline.
    pipeline
        Group of the processes of the own pipeline; None for all processes.
    peers
        Group of the processes with the same stages, one of each replica; None where ``count``
        is 1.
    mesh
        Both as a mesh with the dimensions "dp" and "pp".
    timeout
        How long a group waits; None for torch's default.
    """

    count: int = 1
    index: int = 0
    ranks: int = 1
    pipeline: dist.ProcessGroup | None = None
    peers: dist.ProcessGroup | None = None
    mesh: DeviceMesh | None = None
    timeout: datetime.timedelta | None = None

    def new_group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """Return a group of some ranks of the own pipeline; all processes call it alike."""
        starts = range(0, self.count * self.ranks, self.ranks)
        groups: list[dist.ProcessGroup] = [
            dist.new_group([start + rank for rank in ranks], timeout=self.timeout)
            for start in starts
        ]
        return groups[self.index]

    def totals(self, *values: float) -> list[float]:
        """Return sums over the replicas; the same processes of all replicas call it."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(sums, group=self.peers)
        return sums.tolist()

    def sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients over the replicas.

        One without a gradient on every replica stays without.

        Raises
        ------
        PipelineError
            If a gradient is sparse.
        """
        if self.count == 1 or not parameters:
            return
        there = torch.tensor([p.grad is not None for p in parameters], device=self._device).int()
        dist.all_reduce(there, group=self.peers)
        pairs = zip(parameters, there.tolist(), strict=True)
        for bucket in _buckets(_gradient(parameter) for parameter, found in pairs if found):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            dist.all_reduce(flat, group=self.peers)
            pieces = torch.split(flat, [gradient.numel() for gradient in bucket])
            for gradient, piece in zip(bucket, pieces, strict=True):
                gradient.copy_(piece.view_as(gradient))

    def collect(self, runs: list[list[dict[str, Tensor]]]) -> list[list[dict[str, Tensor]]]:
        """Return what all replicas found, dealt out in turn, on the first; else nothing.

        The same processes of all replicas call it.
        """
        if self.count == 1:
            return runs
        assert self.peers is not None
        mine = [[{name: t.cpu() for name, t in part.items()} for part in run] for run in runs]
        found: list[Any] | None = [None] * self.count if self.index == 0 else None
        first = dist.get_global_rank(self.peers, 0)
        dist.gather_object(mine, found, dst=first, group=self.peers)
        turns = zip_longest(*(found or ()))
        return [run for turn in turns for run in turn if run is not None]

    @torch.no_grad()
    def align(self, buffers: Iterable[Tensor], *, mean: bool) -> None:
        """Give all replicas the same buffers: those of the first, or means where they are floats.

        Each replica has seen other rows, so that statistics (BatchNorm) differ. What is the same
        everywhere stays so to the last bit.
        """
        for buffer in buffers if self.count > 1 else ():
            assert self.peers is not None
            first = buffer.clone(memory_format=torch.contiguous_format)
            # Not every backend knows every dtype.
            flat = first.view(-1).view(torch.uint8)
            dist.broadcast(flat, dist.get_global_rank(self.peers, 0), group=self.peers)
            if mean and buffer.is_floating_point():
                apart = torch.where(buffer == first, torch.zeros_like(first), buffer - first)
                dist.all_reduce(apart, group=self.peers)
                first += apart / self.count
            buffer.copy_(first)

    @property
    def _device(self) -> torch.device:
        """Device whose tensors the groups take."""
        return torch.device("cpu" if self.mesh is None else self.mesh.device_type)


def connect(count: int, ranks: int, device: torch.device, timeout: datetime.timedelta) -> Replicas:
    """Make the groups of ``count`` pipelines of ``ranks`` processes; all processes call it."""
    if count == 1:
        return Replicas(ranks=ranks, timeout=timeout)
    numbers = torch.arange(count * ranks).view(count, ranks)
    index, rank = divmod(dist.get_rank(), ranks)
    pipelines = [dist.new_group(row, timeout=timeout) for row in numbers.tolist()]
    peers = [dist.new_group(column, timeout=timeout) for column in numbers.T.tolist()]
    mesh = DeviceMesh.from_group(
        [peers[rank], pipelines[index]], device.type, numbers, mesh_dim_names=("dp", "pp")
    )
    return Replicas(count, index, ranks, pipelines[index], peers[rank], mesh, timeout)


def _gradient(parameter: nn.Parameter) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    if parameter.grad.is_sparse:
        raise PipelineError(
            f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which replicas "
            "do not sum: build its embedding with sparse=False"
        )
    return parameter.grad


def _buckets(gradients: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one dtype that together are not larger than a bucket."""
    bucket: list[Tensor] = []
    nbytes = 0
    for gradient in gradients:
        other = bool(bucket) and bucket[0].dtype != gradient.dtype
        if bucket and (other or nbytes + gradient.nbytes > _BUCKET_BYTES):
            yield bucket
            bucket, nbytes = [], 0
        bucket.append(gradient)
        nbytes += gradient.nbytes
    if bucket:
        yield bucket
