"""Devices and links of a cluster, as rich tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autosplit.report.styles import LABEL, STRONG
from autosplit.report.tables import grid
from autosplit.serialize import to_data
from autosplit.types import Cluster, Device, LinkSpeed
from autosplit.units import format_bytes, format_rate, format_seconds

_VERSION = (1, 0)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_WIDEST = 32
"""Devices up to which the matrix of links is shown."""


def cluster_tables(cluster: Cluster) -> list[RenderableType]:
    """Return the devices, the kinds of links, and which link is of which kind."""
    if not cluster.has_links:
        note = "Links are left to --bandwidth and --latency of a plan."
        return [_device_table(cluster), Text(note, style=LABEL)]
    if len(cluster.devices) == 1:
        return [_device_table(cluster)]
    speeds = _speeds(cluster)
    names = dict(zip(speeds, _names(len(speeds)), strict=True))
    tables: list[RenderableType] = [_device_table(cluster), _link_table(speeds, names)]
    if len(cluster.devices) <= _WIDEST:
        tables.append(_matrix(cluster, names))
    return tables


def cluster_data(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster for programs, with the link of every pair of devices."""
    return {
        "schema": "autosplit.report.cluster",
        "version": list(_VERSION),
        "devices": [to_data(device) for device in cluster.devices],
        "links": [
            {"between": [first.name, second.name], **to_data(cluster.link(first, second))}
            for first, second in _pairs(cluster)
        ],
    }


def _pairs(cluster: Cluster) -> Iterator[tuple[Device, Device]]:
    if cluster.has_links:
        yield from combinations(cluster.devices, 2)


def _device_table(cluster: Cluster) -> Table:
    table = grid("Devices")
    table.add_column("#", justify="right", style=LABEL)
    table.add_column("name", style=STRONG, overflow="fold")
    table.add_column("kind", overflow="fold")
    table.add_column("node", overflow="fold")
    table.add_column("memory", justify="right", no_wrap=True)
    table.add_column("speed", justify="right", no_wrap=True)
    for number, device in enumerate(cluster.devices):
        memory = device.memory_bytes
        table.add_row(
            str(number),
            Text(device.name),
            Text(device.kind),
            Text(device.node),
            "-" if memory is None else format_bytes(memory),
            f"{device.speed:g}×",
        )
    return table


def _speeds(cluster: Cluster) -> dict[LinkSpeed, int]:
    """Return how many pairs have each link, the most common first."""
    counts: dict[LinkSpeed, int] = {}
    for first, second in _pairs(cluster):
        speed = cluster.link(first, second)
        counts[speed] = counts.get(speed, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _names(count: int) -> list[str]:
    if count <= len(_LETTERS):
        return list(_LETTERS[:count])
    return [str(number) for number in range(1, count + 1)]


def _link_table(speeds: dict[LinkSpeed, int], names: dict[LinkSpeed, str]) -> Table:
    table = grid("Links")
    table.add_column("link", style=STRONG)
    for heading in ("bandwidth", "latency", "pairs"):
        table.add_column(heading, justify="right", no_wrap=True)
    for speed, pairs in speeds.items():
        rate = speed.bytes_per_s
        table.add_row(
            names[speed],
            "free" if rate is None else format_rate(rate),
            format_seconds(speed.latency_s),
            str(pairs),
        )
    return table


def _matrix(cluster: Cluster, names: dict[LinkSpeed, str]) -> Table:
    """Return the kind of link of every pair of devices, which are called by their numbers."""
    table = grid("Link of each pair")
    table.add_column("#", justify="right", style=LABEL)
    for number in range(len(cluster.devices)):
        table.add_column(str(number), justify="center", no_wrap=True)
    for number, device in enumerate(cluster.devices):
        cells = [
            "·" if other is device else names[cluster.link(device, other)]
            for other in cluster.devices
        ]
        table.add_row(str(number), *cells)
    return table
