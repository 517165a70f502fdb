"""Read and write ``cluster.toml``: which devices there are and how fast they talk."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from autosplit.errors import DataError
from autosplit.serialize import read_text
from autosplit.types import Cluster, Device, LinkSpeed, PairLink
from autosplit.units import (
    exact_bytes,
    exact_rate,
    exact_seconds,
    parse_bytes,
    parse_latency,
    parse_rate,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")

EXAMPLE = """\
[[device]]
kind = "a100"
count = 4
memory = "80GiB"
speed = 2.0                     # against the device of the profile
node = "box0"

[[device]]
kind = "v100"
count = 4
memory = "32GiB"
node = "box1"

[links]
default = { bandwidth = "10GB/s", latency = "5us" }
node = { bandwidth = "200GB/s" }    # inside one node

[[link]]
between = ["box0", "box1"]      # nodes, or devices: "a100-0"
bandwidth = "1GB/s"
"""
"""A file, as help shows it; ``[links]`` and ``[[link]]`` may be left out."""

_FREE = "free"
"""Bandwidth of a link on which bytes cost nothing."""

_MOST_DEVICES = 10_000


def read(path: str | os.PathLike[str]) -> Cluster:
    """Read a cluster from a TOML file.

    Raises
    ------
    DataError
        Naming the table and key at fault.
    """
    text = read_text(path)
    try:
        return parse(text)
    except DataError as error:
        raise DataError(f"{path}: {error.message}", cause=error.cause, hint=error.hint) from None


def parse(text: str) -> Cluster:
    """Return the cluster that a TOML text describes.

    Raises
    ------
    DataError
        Naming the table and key at fault.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise DataError("not a TOML file", cause=str(error)) from None
    root = _Table("the file", data)
    devices: list[Device] = []
    for number, entry in enumerate(root.tables("device")):
        devices += _devices(_Table(f"device {number + 1}", entry), devices)
    if not devices:
        raise DataError("no devices", hint='write at least one [[device]] with kind = "..."')
    speeds = _Table("links", root.take("links", dict, {}))
    default = _speed(speeds, "default")
    within_node = _speed(speeds, "node")
    speeds.end()
    links = tuple(_links(root.tables("link"), devices))
    root.end()
    _check_names(devices)
    found = Cluster(tuple(devices), links, within_node, default)
    _check_links(found)
    return found


class _Table:
    """A TOML table whose keys are taken one by one; keys left over are an error."""

    def __init__(self, place: str, data: Mapping[str, Any]) -> None:
        self.place = place
        self.left = dict(data)

    def take(self, key: str, kind: type[T] | tuple[type[T], ...], default: T) -> T:
        """Return the value of a key, of the type asked for."""
        value = self.left.pop(key, default)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise DataError(f"{self.place}: {key} cannot be {value!r}")
        return value

    def tables(self, key: str) -> list[Mapping[str, Any]]:
        """Return an array of tables."""
        entries: list[Mapping[str, Any]] = self.take(key, list, [])
        if not all(isinstance(entry, dict) for entry in entries):
            raise DataError(f"{self.place}: {key} has to be written as [[{key}]]")
        return entries

    def amount(self, key: str, parse: Callable[[str], T], default: T) -> T:
        """Return a quantity with a unit ("16GiB"); a plain number can only be 0."""
        if key not in self.left:
            return default
        value = self.left.pop(key)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise DataError(f"{self.place}: {key} cannot be {value!r}")
        try:
            return parse(str(value))
        except DataError as error:
            raise DataError(f"{self.place}: {key}: {error.message}", hint=error.hint) from None

    def end(self) -> None:
        """Refuse keys that nobody took."""
        if self.left:
            raise DataError(f"{self.place}: unknown key {next(iter(self.left))!r}")


def _devices(table: _Table, known: list[Device]) -> list[Device]:
    kind = table.take("kind", str, "device")
    name = table.take("name", str, "")
    count = table.take("count", int, 1)
    node = table.take("node", str, "node")
    memory = table.amount("memory", parse_bytes, None)
    speed = float(table.take("speed", (int, float), 1.0))
    table.end()
    if count < 1:
        raise DataError(f"{table.place}: count is {count}, not at least 1")
    if len(known) + count > _MOST_DEVICES:
        raise DataError(f"{table.place}: more than {_MOST_DEVICES} devices")
    if name and count == 1 and any(device.name == name for device in known):
        raise DataError(f"{table.place}: the name {name!r} is taken")
    names = _names(name or kind, kind, count, known)
    try:
        return [Device(each, kind, node, memory, speed) for each in names]
    except DataError as error:
        raise DataError(f"{table.place}: {error.message}", cause=error.cause) from None


def _names(name: str, kind: str, count: int, known: Sequence[Device]) -> list[str]:
    """Return the names of some devices: the one given, or with the next free numbers."""
    taken = {device.name for device in known}
    if count == 1 and name not in taken:
        return [name]
    names: list[str] = []
    number = sum(device.kind == kind for device in known)
    while len(names) < count:
        if f"{name}-{number}" not in taken:
            names.append(f"{name}-{number}")
        number += 1
    return names


def _check_names(devices: Sequence[Device]) -> None:
    """Refuse a name that could mean a device as well as a node of others."""
    sizes = Counter(device.node for device in devices)
    for device in devices:
        if sizes[device.name] > (device.node == device.name):
            raise DataError(
                f"{device.name!r} is a device and also a node of other devices",
                hint="give one of them another name",
            )


def _speed(table: _Table, key: str) -> LinkSpeed | None:
    if key not in table.left:
        return None
    inner = _Table(f"{table.place}.{key}", table.take(key, dict, {}))
    speed = _rates(inner)
    inner.end()
    return speed


def _rates(table: _Table) -> LinkSpeed:
    if "bandwidth" not in table.left:
        raise DataError(
            f"{table.place}: no bandwidth", hint=f'write bandwidth = "10GB/s", or "{_FREE}"'
        )
    rate = table.amount("bandwidth", lambda text: None if text == _FREE else parse_rate(text), None)
    return LinkSpeed(rate, table.amount("latency", parse_latency, 0.0))


def _links(entries: Sequence[Mapping[str, Any]], devices: list[Device]) -> Iterator[PairLink]:
    seen: set[frozenset[str]] = set()
    for number, entry in enumerate(entries):
        table = _Table(f"link {number + 1}", entry)
        link = _link(table, devices)
        if frozenset(link.ends) in seen:
            raise DataError(
                f"{table.place}: the link between {' and '.join(link.ends)} stands twice"
            )
        seen.add(frozenset(link.ends))
        yield link


def _link(table: _Table, devices: list[Device]) -> PairLink:
    ends: list[Any] = table.take("between", list, [])
    if len(ends) != 2:
        raise DataError(f"{table.place}: between names {len(ends)} ends, not 2")
    sizes = Counter(device.node for device in devices)
    known = {device.name for device in devices} | sizes.keys()
    for end in ends:
        if not isinstance(end, str) or end not in known:
            raise DataError(
                f"{table.place}: {end!r} is neither a device nor a node",
                hint=f"known: {', '.join(sorted(known))}",
            )
    if ends[0] == ends[1] and sizes[ends[0]] < 2:
        raise DataError(
            f"{table.place}: {ends[0]!r} is linked to itself",
            hint="a node of several devices may be: that is the link inside of it",
        )
    speed = _rates(table)
    table.end()
    return PairLink((ends[0], ends[1]), speed)


def _check_links(cluster: Cluster) -> None:
    """Refuse a cluster that speaks of some links and leaves others open."""
    if not cluster.has_links:
        return
    for position, first in enumerate(cluster.devices):
        for second in cluster.devices[position + 1 :]:
            cluster.link(first, second)


# ---------------------------------------------------------------- writing


def to_toml(cluster: Cluster) -> str:
    """Return the text of a file that reads as exactly this cluster."""
    blocks = ["\n".join(lines) for lines in _device_tables(cluster.devices)]
    speeds = {"default": cluster.default, "node": cluster.within_node}
    said = [f"{key} = {{ {', '.join(_spelled(speed))} }}" for key, speed in speeds.items() if speed]
    if said:
        blocks.append("\n".join(["[links]", *said]))
    for link in cluster.links:
        ends = ", ".join(map(_quoted, link.ends))
        blocks.append("\n".join(["[[link]]", f"between = [{ends}]", *_spelled(link.speed)]))
    return "\n\n".join(blocks) + "\n"


def _device_tables(devices: Sequence[Device]) -> Iterator[list[str]]:
    """Yield a table for each run of devices that reading would name alike, else for each one."""
    start = 0
    while start < len(devices):
        first = devices[start]
        count = next(
            count
            for count in range(_alike(devices, start), 0, -1)
            if count == 1 or _counted(devices, start, count)
        )
        lines = ["[[device]]", f"kind = {_quoted(first.kind)}"]
        if count > 1:
            lines.append(f"count = {count}")
        elif first.name != _names(first.kind, first.kind, 1, devices[:start])[0]:
            lines.append(f"name = {_quoted(first.name)}")
        if first.memory_bytes is not None:
            lines.append(f"memory = {_quoted(exact_bytes(first.memory_bytes))}")
        yield [*lines, f"speed = {first.speed!r}", f"node = {_quoted(first.node)}"]
        start += count


def _alike(devices: Sequence[Device], start: int) -> int:
    """Return how many devices from ``start`` on differ in nothing but their names."""

    def traits(device: Device) -> tuple[object, ...]:
        return device.kind, device.node, device.memory_bytes, device.speed

    count = 1
    while start + count < len(devices) and traits(devices[start + count]) == traits(devices[start]):
        count += 1
    return count


def _counted(devices: Sequence[Device], start: int, count: int) -> bool:
    kind = devices[start].kind
    names = [device.name for device in devices[start : start + count]]
    return names == _names(kind, kind, count, devices[:start])


def _spelled(speed: LinkSpeed) -> list[str]:
    rate = _FREE if speed.bytes_per_s is None else exact_rate(speed.bytes_per_s)
    said = [f"bandwidth = {_quoted(rate)}"]
    if speed.latency_s:
        said.append(f"latency = {_quoted(exact_seconds(speed.latency_s))}")
    return said


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
