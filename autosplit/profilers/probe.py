"""Measure the devices and links of a cluster, from one process on each device.

Processes meet through the key-value store of torchrun: before each round every rank says there
that it has come, so one that hangs is known by name. Measurements travel through it as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from autosplit.errors import AutosplitError, UsageError
from autosplit.modelspec.meta import free_bytes
from autosplit.profilers.environment import choose_device, device_name
from autosplit.profilers.links import Wire, flops_per_s
from autosplit.profilers.topology import (
    ALIKE,
    Member,
    Pair,
    alike,
    both_ways,
    cluster_of,
    rounds,
    tolerance,
)
from autosplit.types import Cluster, LinkSpeed
from autosplit.units import format_rate, format_share

COMMAND = "torchrun --nproc-per-node 4 --no-python autosplit cluster probe -o cluster.toml"
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_LOPSIDED = 1.5
"""Ratio of the times of two ways from which on it is worth a remark."""

_GRACE = timedelta(seconds=3)
"""Wait for another rank to name the one at fault."""

Report = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Measured:
    """What the ranks found.

    Parameters
    ----------
    cluster
        Devices and links, what is alike said once.
    ways
        Of each pair of ranks, the lower first: the link there and the link back.
    """

    cluster: Cluster
    ways: dict[Pair, tuple[LinkSpeed, LinkSpeed]]

    def remarks(self) -> list[str]:
        """Return what a user should know of the measurements."""
        within = tolerance(self.ways.values())
        found = [
            f"{self._name(first)} sends {_rate(there)} to {self._name(second)}, "
            f"which sends {_rate(back)} back"
            for (first, second), (there, back) in self.ways.items()
            if not alike(there, back, max(within, _LOPSIDED))
        ]
        if within > ALIKE:
            share = format_share(within - 1)
            found.append(
                f"times of the two ways of a link differ by {share} here, so links within that of "
                "each other are written as one: are the machines busy?"
            )
        return found

    def _name(self, rank: int) -> str:
        return self.cluster.devices[rank].name


def _rate(link: LinkSpeed) -> str:
    return format_rate(link.bytes_per_s or 0.0)


def own_rank() -> int:
    """Return the rank of this process.

    Raises
    ------
    UsageError
        If no launcher started it.
    """
    missing = [name for name in _LAUNCHED if not os.environ.get(name)]
    if missing:
        raise UsageError(
            "a cluster is probed by one process on each device",
            cause=f"{missing[0]} is not set: torchrun sets it",
            hint=f"{COMMAND}\n(on several machines also --nnodes and --rdzv-endpoint)",
        )
    return int(os.environ["RANK"])


def probe(device: str, timeout_s: float, speed: bool, report: Report) -> Measured | None:
    """Measure all devices and the links between all pairs; every rank calls it.

    Parameters
    ----------
    device
        "cpu", "cuda", or "auto" for a GPU where there is one.
    timeout_s
        Seconds that a rank may stay away or silent.
    speed
        Whether to compare the speed of the devices.
    report
        Called with rounds done, all rounds and what is being done.

    Returns
    -------
    Measured or None
        None on all ranks but the first.

    Raises
    ------
    UsageError
        If this process was not launched as a rank, or the ranks have no devices of one type.
    AutosplitError
        Naming the ranks that hang or have gone.
    """
    rank = own_rank()
    chosen = _own_device(device)
    meeting = _Meeting.join(rank, timeout_s)
    members = meeting.members(_member(chosen))
    _check_types(meeting.tell_all("type", chosen.type), members)
    with meeting.group(chosen):
        if speed:
            meeting.gather("before the speed is measured")
            told = meeting.tell_all("speed", flops_per_s(chosen))
            members = [
                replace(member, flops_per_s=rate)
                for member, rate in zip(members, told, strict=True)
            ]
        order = rounds([member.node for member in members])
        for number, pairs in enumerate(order):
            report(number, len(order), f"{len(pairs)} of {_pairs(len(members))} pairs at a time")
            meeting.gather(f"round {number}")
            for pair in pairs:
                if rank in pair:
                    _measure(meeting, pair, chosen)
        meeting.gather("at the end")
    if rank:
        return None
    ways = {pair: meeting.read_link(pair) for pair in sorted(p for pairs in order for p in pairs)}
    links = {pair: both_ways(*there_and_back) for pair, there_and_back in ways.items()}
    return Measured(cluster_of(members, links, tolerance(ways.values())), ways)


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


def _measure(meeting: _Meeting, pair: Pair, device: torch.device) -> None:
    """Measure both ways between two ranks; the lower one leads first and tells both."""
    other = pair[0] if meeting.rank == pair[1] else pair[1]
    wire = Wire(other, device)
    with meeting.answered_by(other):
        if meeting.rank == pair[0]:
            meeting.tell(f"there/{pair}", asdict(wire.lead()))
            wire.follow()
        else:
            wire.follow()
            meeting.tell(f"back/{pair}", asdict(wire.lead()))


# ---------------------------------------------------------------- meeting


class _Meeting:
    """The ranks, and the store through which they talk."""

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.timeout = timedelta(seconds=timeout_s)
        self.names = [f"rank {each}" for each in range(size)]

    @classmethod
    def join(cls, rank: int, timeout_s: float) -> _Meeting:
        """Reach the store that the launcher serves."""
        try:
            store, _, size = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
        except (RuntimeError, ValueError) as error:
            raise AutosplitError(
                f"rank {rank} cannot reach the others", cause=str(error).split("\n")[0]
            ) from None
        return cls(PrefixStore("autosplit-probe", store), rank, size, timeout_s)

    def tell(self, key: str, value: Any) -> None:
        """Leave a value for the others."""
        self.store.set(key, json.dumps(value))

    def tell_all(self, key: str, value: Any) -> list[Any]:
        """Leave a value and return those of all ranks."""
        self.tell(f"{key}/{self.rank}", value)
        self._await(key)
        return [json.loads(self.store.get(f"{key}/{rank}")) for rank in range(self.size)]

    def members(self, own: Member) -> list[Member]:
        """Exchange what ranks say of their devices; from now on they are called by node."""
        found = [Member(**data) for data in self.tell_all("member", asdict(own))]
        self.names = [f"rank {rank} on {member.node}" for rank, member in enumerate(found)]
        return found

    def gather(self, place: str) -> None:
        """Wait until every rank has come to this place.

        Raises
        ------
        AutosplitError
            Naming those that do not come in time.
        """
        self.tell(f"{place}/{self.rank}", True)
        self._await(place)

    def read_link(self, pair: Pair) -> tuple[LinkSpeed, LinkSpeed]:
        """Return the two ways of a pair."""
        there, back = (json.loads(self.store.get(f"{way}/{pair}")) for way in ("there", "back"))
        return LinkSpeed(**there), LinkSpeed(**back)

    def _await(self, place: str) -> None:
        keys = [f"{place}/{rank}" for rank in range(self.size)]
        try:
            self.store.wait(keys, self.timeout)
        except RuntimeError:
            if (silent := self._silent()) is not None:
                raise self._gone(self.names[silent]) from None
            late = [name for name, key in zip(self.names, keys, strict=True) if not self._has(key)]
            raise self._gone(", ".join(late) or "the store") from None

    def _silent(self) -> int | None:
        """Return the rank that did not answer the one it is measured with, if there is one.

        That other rank, which is late as well, soon says so.
        """
        with contextlib.suppress(RuntimeError):
            self.store.wait(["silent"], _GRACE)
            return int(json.loads(self.store.get("silent")))
        return None

    def _has(self, key: str) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(self.store.check([key]))
        return False

    def _gone(self, who: str) -> AutosplitError:
        return AutosplitError(
            f"no answer from {who}",
            cause=f"waited {self.timeout.total_seconds():g} s",
            hint="look at what it says, or raise --timeout",
        )

    @contextlib.contextmanager
    def group(self, device: torch.device) -> Iterator[None]:
        """Have a process group of all ranks; where one rank is alone there is none."""
        if self.size == 1:
            yield
            return
        try:
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self.store,
                rank=self.rank,
                world_size=self.size,
                timeout=self.timeout,
            )
            dist.all_reduce(torch.ones(1, device=device))
        except RuntimeError as error:
            raise AutosplitError(
                "the ranks cannot connect", cause=str(error).split("\n")[0]
            ) from None
        yield
        dist.destroy_process_group()

    @contextlib.contextmanager
    def answered_by(self, other: int) -> Iterator[None]:
        """Name the other rank where it does not answer."""
        try:
            yield
        except RuntimeError:
            with contextlib.suppress(RuntimeError):
                self.tell("silent", other)
            raise self._gone(self.names[other]) from None


# ---------------------------------------------------------------- this rank's device


def _own_device(name: str) -> torch.device:
    chosen = choose_device(name)
    if chosen.type == "cpu":
        return chosen
    local = int(os.environ["LOCAL_RANK"])
    if local >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local} has no GPU of its own",
            cause=f"torch sees {torch.cuda.device_count()} GPUs",
            hint="start one process for each GPU, or probe with --device cpu",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _member(device: torch.device) -> Member:
    memory: int | None
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
    else:
        free = free_bytes()
        memory = None if free is None else free // int(os.environ["LOCAL_WORLD_SIZE"])
    return Member(socket.gethostname(), _kind(device_name(device)), memory)


def _kind(name: str) -> str:
    """Return a short name of a device: ``"a100-sxm4-80gb"``."""
    plain = re.sub(r"\((r|tm|c)\)|@.*|\b(nvidia|cpu|processor)\b", " ", name.lower())
    return "-".join(re.findall(r"[a-z0-9.]+", plain)) or "device"


def _check_types(types: list[str], members: list[Member]) -> None:
    """Refuse GPUs together with processors: nothing measures a link between them."""
    if len(set(types)) > 1:
        lacking = types.index("cpu")
        raise UsageError(
            f"rank {lacking} on {members[lacking].node} has no GPU, others have",
            hint="probe all of them with --device cpu, or leave it out",
        )
