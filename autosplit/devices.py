"""Which device may run which stage.

Devices that no plan can tell apart (same kind, speed, memory and links) form a class. Solvers
choose a class for each stage; the devices of a class are then dealt out in the order of the file.
"""

from __future__ import annotations

import heapq
import itertools
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from autosplit.chain import per_group
from autosplit.cost import LayerTimes, Place
from autosplit.errors import UsageError
from autosplit.schedules import Schedule
from autosplit.solvers.base import DeviceKind, Link
from autosplit.types import Cluster, Device, LinkSpeed, PlanRequest
from autosplit.units import counted


@dataclass(frozen=True)
class Devices:
    """The devices of a request, for one schedule.

    Parameters
    ----------
    cluster
        The devices; one is taken for each rank.
    fallback
        Memory and link where the cluster leaves them open.
    times
        Times measured on a kind of device, by its name.
    """

    cluster: Cluster
    fallback: PlanRequest
    times: Mapping[str, LayerTimes]

    # ------------------------------------------------------------ single devices

    def place(self, device: Device) -> Place:
        """Return a device as the cost model knows it."""
        memory = device.memory_bytes
        if memory is None:
            memory = self.fallback.memory_bytes
        return Place(
            speed=device.speed,
            budget_bytes=math.inf if memory is None else float(memory),
            name=device.name,
            times=self.times.get(device.kind),
        )

    def link(self, first: Device, second: Device) -> Link:
        """Return the link between two devices as the cost model knows it."""
        cluster = self.cluster
        if not cluster.has_links:
            return link_of(self.fallback.link_bytes_per_s, self.fallback.latency_s)
        said: LinkSpeed = cluster.link(first, second)
        return link_of(said.bytes_per_s, said.latency_s)

    # ------------------------------------------------------------ orders

    def in_order(
        self, schedule: Schedule, order: Sequence[Device]
    ) -> tuple[tuple[Place, ...], tuple[Link, ...]]:
        """Return places and links when the device of each rank is known."""
        ranked = [order[schedule.rank_of(stage)] for stage in range(schedule.stages)]
        links = tuple(
            Link() if first is second else self.link(first, second)
            for first, second in itertools.pairwise(ranked)
        )
        return tuple(self.place(device) for device in ranked), links

    def classes(self) -> list[list[Device]]:
        """Return the devices that no plan can tell apart, in the order of the file."""
        found: list[list[Device]] = []
        for device in self.cluster.devices:
            for group in found:
                if self._alike(device, group):
                    group.append(device)
                    break
            else:
                found.append([device])
        return found

    def _alike(self, device: Device, group: list[Device]) -> bool:
        other = group[0]
        if (device.kind, self._traits(device)) != (other.kind, self._traits(other)):
            return False
        inside = {self.link(member, device) for member in group}
        inside.update(self.link(other, second) for second in group[1:2])
        return len(inside) == 1 and all(
            self.link(device, third) == self.link(other, third)
            for third in self.cluster.devices
            if third is not device and third not in group
        )

    def _traits(self, device: Device) -> tuple[float, float]:
        place = self.place(device)
        return place.speed, place.budget_bytes

    def mixes(self, count: int) -> Iterator[tuple[int, ...]]:
        """Yield how many devices of each class to use, ``count`` in all, fastest first.

        Raises
        ------
        UsageError
            If there are not enough devices.
        """
        classes = self.classes()
        if count > len(self.cluster.devices):
            raise UsageError(
                f"{counted(count, 'rank')}, but the cluster has "
                f"{counted(len(self.cluster.devices), 'device')}",
                hint="take fewer stages, or several stages for each device "
                "(--schedule interleaved)",
            )
        sizes = [len(group) for group in classes]
        speeds = [group[0].speed for group in classes]
        ranked = sorted(range(len(classes)), key=lambda number: -speeds[number])

        def rated(mix: list[int]) -> tuple[float, tuple[int, ...]]:
            return -math.fsum(map(operator.mul, mix, speeds)), tuple(mix)

        # Every mix comes from the fastest by moves to the next slower class. There may be far too
        # many to list.
        waiting = [rated(_first_taken(sizes, ranked, count))]
        known = set(waiting)
        while waiting:
            _, mix = heapq.heappop(waiting)
            yield mix
            for faster, slower in itertools.pairwise(ranked):
                if mix[faster] and mix[slower] < sizes[slower]:
                    moved = list(mix)
                    moved[faster] -= 1
                    moved[slower] += 1
                    if (entry := rated(moved)) not in known:
                        known.add(entry)
                        heapq.heappush(waiting, entry)

    def refuse_copies(self, ranks: int) -> None:
        """Refuse several copies of a pipeline of ``ranks`` devices, but on devices all alike.

        Raises
        ------
        UsageError
            If the copies would differ, or there are too few devices for them.
        """
        copies, count = self.fallback.replicas, len(self.cluster.devices)
        if copies == 1:
            return
        if len(self.classes()) > 1:
            raise UsageError(
                "copies of a pipeline are for devices that are all alike",
                cause="those of the cluster differ, or their links do",
                hint="plan one pipeline over all of them: leave out --data-parallel",
            )
        if copies * ranks > count:
            raise UsageError(
                f"{copies} copies of {counted(ranks, 'rank')}, but the cluster has "
                f"{counted(count, 'device')}",
                hint=f"take at most {counted(count // copies, 'stage')}"
                if count >= copies
                else f"take at most {counted(count, 'copy')}",
            )

    def kinds(
        self, mix: Sequence[int], groups: Sequence[Sequence[int]], recompute_all: bool
    ) -> tuple[tuple[DeviceKind, ...], tuple[tuple[Link, ...], ...]]:
        """Return the classes of a mix for the solvers, and the links between them."""
        used = [group for group, count in zip(self.classes(), mix, strict=True) if count]
        kinds = []
        for group, count in zip(used, filter(None, mix), strict=True):
            place = self.place(group[0])
            kinds.append(
                DeviceKind(
                    count=count,
                    speed=place.speed,
                    budget_bytes=place.budget_bytes,
                    work_s=_work_s(place, groups, recompute_all),
                )
            )
        links = tuple(
            tuple(Link() if len(a) == 1 and a is b else self.link(a[0], b[-1]) for b in used)
            for a in used
        )
        return tuple(kinds), links

    def taken(self, mix: Sequence[int]) -> list[Device]:
        """Return the devices of a mix."""
        pairs = zip(self.classes(), mix, strict=True)
        return [device for group, count in pairs for device in group[:count]]

    def dealt(self, mix: Sequence[int], kind_of: Sequence[int]) -> list[Device]:
        """Return the device of each stage when solvers have chosen the class of each."""
        used = [iter(group) for group, count in zip(self.classes(), mix, strict=True) if count]
        return [next(used[kind]) for kind in kind_of]


def _first_taken(sizes: Sequence[int], ranked: Sequence[int], count: int) -> list[int]:
    """Return how many of each class there are among the first ``count`` devices by rank."""
    taken = [0] * len(sizes)
    for number in ranked:
        taken[number] = min(count - sum(taken), sizes[number])
    return taken


def link_of(bytes_per_s: float | None, latency_s: float) -> Link:
    """Return a link; without a rate bytes are free."""
    return Link(1 / bytes_per_s if bytes_per_s else 0.0, latency_s)


def _work_s(
    place: Place, groups: Sequence[Sequence[int]], recompute_all: bool
) -> tuple[float, ...]:
    if place.times is None:
        return ()
    forward, backward = place.times.forward_s, place.times.backward_s
    passes = (forward, backward, forward) if recompute_all else (forward, backward)
    return tuple(seconds / place.speed for seconds in per_group(groups, *passes))
