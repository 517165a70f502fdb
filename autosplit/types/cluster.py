"""The devices at hand and the links between them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from autosplit.checks import require, require_finite, require_unique
from autosplit.errors import DataError


@dataclass(frozen=True, slots=True)
class Device:
    """One device.

    Parameters
    ----------
    name
        Unique.
    kind
        Devices of one kind run the model alike ("a100").
    node
        Machine it is in.
    memory_bytes
        Its memory; None for no limit.
    speed
        Relative to the device of the profile: 2 halves all times.
    """

    name: str
    kind: str = "device"
    node: str = "node"
    memory_bytes: int | None = None
    speed: float = 1.0

    def __post_init__(self) -> None:
        require_finite(self, "memory_bytes", "speed")
        require(self, self.memory_bytes != 0, "memory must be above zero")
        require(self, bool(self.name and self.kind and self.node), "an empty name")
        require(self, self.speed > 0, "speed must be positive")


@dataclass(frozen=True, slots=True)
class LinkSpeed:
    """How fast bytes travel between two devices, each way; no rate means that they are free."""

    bytes_per_s: float | None = None
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        require_finite(self, "bytes_per_s", "latency_s")
        require(self, self.bytes_per_s != 0, "a link must carry something")


@dataclass(frozen=True, slots=True)
class PairLink:
    """The link between two devices, between all devices of two nodes, or inside one node."""

    ends: tuple[str, str]
    speed: LinkSpeed


@dataclass(frozen=True)
class Cluster:
    """Devices and links.

    Parameters
    ----------
    devices
        In the order of the file.
    links
        By pair of devices, or of nodes.
    within_node
        Link of two devices in one node, where no pair says otherwise.
    default
        Link of any others.
    """

    devices: tuple[Device, ...]
    links: tuple[PairLink, ...] = ()
    within_node: LinkSpeed | None = None
    default: LinkSpeed | None = None

    def __post_init__(self) -> None:
        require(self, bool(self.devices), "a cluster needs at least one device")
        require_unique(self, "device", (device.name for device in self.devices))

    @property
    def has_links(self) -> bool:
        """Whether anything is said about links; else they are left to the request."""
        return bool(self.links or self.within_node or self.default)

    @cached_property
    def _pairs(self) -> dict[frozenset[str], LinkSpeed]:
        return {frozenset(link.ends): link.speed for link in self.links}

    def link(self, first: Device, second: Device) -> LinkSpeed:
        """Return the link between two devices; what is said most closely counts.

        Raises
        ------
        DataError
            If nothing is said about it.
        """
        said = (
            self._pairs.get(frozenset((first.name, second.name)))
            or self._pairs.get(frozenset((first.node, second.node)))
            or (self.within_node if first.node == second.node else None)
            or self.default
        )
        if said is None:
            raise DataError(
                f"nothing is said about the link between {first.name} and {second.name}",
                hint="give it a [[link]] of its own, or set [links] default",
            )
        return said
