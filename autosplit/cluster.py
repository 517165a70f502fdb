"""Read ``cluster.toml``: which devices there are and how fast they talk.

.. code-block:: toml

    [[device]]
    kind = "a100"
    count = 4
    memory = "80GiB"
    speed = 2.0          # against the device of the profile
    node = "box0"

    [links]
    default = { bandwidth = "10GB/s", latency = "5us" }
    node = { bandwidth = "200GB/s" }

    [[link]]
    between = ["box0", "box1"]      # nodes, or devices ("a100-0")
    bandwidth = "1GB/s"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from autosplit.errors import DataError
from autosplit.serialize import read_text
from autosplit.types import Cluster, Device, LinkSpeed, PairLink
from autosplit.units import parse_bytes, parse_rate, parse_seconds

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")


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
    links = tuple(
        _link(_Table(f"link {number + 1}", entry), devices)
        for number, entry in enumerate(root.tables("link"))
    )
    root.end()
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
        """Return a quantity with a unit ("16GiB"); a plain number is a time in seconds, or 0."""
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
    name = table.take("name", str, kind)
    count = table.take("count", int, 1)
    node = table.take("node", str, "node")
    memory = table.amount("memory", parse_bytes, None)
    speed = float(table.take("speed", (int, float), 1.0))
    table.end()
    if count < 1:
        raise DataError(f"{table.place}: count is {count}, not at least 1")
    taken = {device.name for device in known}
    names = [name] if count == 1 and name not in taken else []
    number = sum(device.kind == kind for device in known)
    while len(names) < count:
        if f"{name}-{number}" not in taken:
            names.append(f"{name}-{number}")
        number += 1
    try:
        return [Device(each, kind, node, memory, speed) for each in names]
    except DataError as error:
        raise DataError(f"{table.place}: {error.message}", cause=error.cause) from None


def _speed(table: _Table, key: str) -> LinkSpeed | None:
    if key not in table.left:
        return None
    inner = _Table(f"{table.place}.{key}", table.take(key, dict, {}))
    speed = _rates(inner)
    inner.end()
    return speed


def _rates(table: _Table) -> LinkSpeed:
    rate = table.amount("bandwidth", parse_rate, None)
    return LinkSpeed(rate, table.amount("latency", parse_seconds, 0.0))


def _link(table: _Table, devices: list[Device]) -> PairLink:
    ends: list[Any] = table.take("between", list, [])
    known = {device.name for device in devices} | {device.node for device in devices}
    if len(ends) != 2:
        raise DataError(f"{table.place}: between names {len(ends)} ends, not 2")
    for end in ends:
        if end not in known:
            raise DataError(
                f"{table.place}: {end!r} is neither a device nor a node",
                hint=f"known: {', '.join(sorted(known))}",
            )
    speed = _rates(table)
    table.end()
    return PairLink((ends[0], ends[1]), speed)


def _check_links(cluster: Cluster) -> None:
    """Refuse a cluster that speaks of some links and leaves others open."""
    if not (cluster.links or cluster.within_node or cluster.default):
        return
    for position, first in enumerate(cluster.devices):
        for second in cluster.devices[position + 1 :]:
            cluster.link(first, second)
