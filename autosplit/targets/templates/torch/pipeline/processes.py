"""The processes of the pipeline: found, checked and connected."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from .errors import PipelineError
from .replicas import Replicas, connect
from .routing import Routing
from .watch import start_watch, stop_watch


@dataclass(frozen=True)
class Processes:
    """One process among the others.

    Parameters
    ----------
    rank, world
        Its number, and how many there are, those of all replicas.
    device
        Device it computes on.
    stages
        Numbers of its stages.
    replicas
        The copies of the pipeline, and which of them it belongs to.
    """

    rank: int
    world: int
    device: torch.device
    stages: tuple[int, ...]
    replicas: Replicas = field(default_factory=Replicas)


@contextmanager
def start(
    routing: Routing,
    *,
    device: str = "auto",
    threads: int | None = None,
    timeout_s: float = 300.0,
    replicas: int | None = None,
) -> Iterator[Processes]:
    """Join the process group for the duration of a ``with`` block.

    Parameters
    ----------
    device
        "cpu", "cuda", or "auto": cuda where every local process has a device of its own.
    threads
        Threads of each process on the CPU; None leaves it to torch.
    timeout_s
        Seconds after which a rank that waits for another gives up.
    replicas
        Copies of the pipeline; None for those of the environment variable REPLICAS, which
        ``launch.sh`` sets, else those of the plan.

    Raises
    ------
    PipelineError
        If the number of processes is not that of the plan, before anything is connected.
    """
    rank, world, local_rank, local_world = _environment()
    copies = replicas or _replicas(routing)
    ranks = max(routing.run.ranks) + 1
    needed = copies * ranks
    if world != needed:
        several = f" ({copies} replicas of {ranks})" if copies > 1 else ""
        raise PipelineError(
            f"this pipeline needs {needed} processes{several} and {world} were started: "
            f"run ./launch.sh, or torchrun --nproc-per-node {needed}"
        )
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = _device(device, local_rank, local_world)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    timeout = datetime.timedelta(seconds=timeout_s)
    try:
        dist.init_process_group(
            "nccl" if chosen.type == "cuda" else "gloo",
            store=_store(rank, timeout),
            rank=rank,
            world_size=world,
            timeout=timeout,
        )
    except (RuntimeError, ValueError) as error:
        raise PipelineError(
            f"rank {rank} of {world} could not reach the others within {timeout_s:g} s: {error}"
        ) from None
    start_watch(rank, world)
    stages = tuple(k for k, owner in enumerate(routing.run.ranks) if owner == rank % ranks)
    yield Processes(rank, world, chosen, stages, connect(copies, ranks, chosen, timeout))
    stop_watch()
    # Not after an error: the others may be in the middle of a transfer, and it would wait.
    dist.destroy_process_group()


def _store(rank: int, timeout: datetime.timedelta) -> Any:
    """Return the store by which processes find each other, with keys of this attempt alone.

    torchrun keeps one store for all restarts, and a rank would find the addresses of the dead.
    """
    made_by_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank == 0 and not made_by_torchrun,
        timeout=timeout,
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt_{attempt}", store)  # type: ignore[attr-defined]


def _environment() -> tuple[int, int, int, int]:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise PipelineError(f"{missing[0]} is not set: start through ./launch.sh or torchrun")
    rank, world, local_rank, local_world = (int(os.environ[name]) for name in names)
    return rank, world, local_rank, local_world


def _replicas(routing: Routing) -> int:
    text = os.environ.get("REPLICAS") or str(routing.run.replicas)
    if not text.isdecimal() or int(text) < 1:
        raise PipelineError(f"REPLICAS={text} is no number of replicas")
    return int(text)


def _device(device: str, local_rank: int, local_world: int) -> torch.device:
    count = torch.cuda.device_count() if device != "cpu" else 0
    if device == "cuda" and count < local_world:
        raise PipelineError(f"{local_world} processes need a CUDA device each; {count} are here")
    return torch.device("cuda", local_rank) if count >= local_world else torch.device("cpu")
