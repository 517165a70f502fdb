"""The table of devices, ``devices.toml``."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from autosplit.errors import UsageError
from autosplit.units import parse_bytes, parse_rate

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_STAND_INS = {
    "float16": ("bfloat16", "float32"),
    "bfloat16": ("float32", "float16"),
    "float64": ("float32",),
    "tfloat32": ("float32",),
}
"""At which rate a device computes what it has no units for."""


@dataclass(frozen=True)
class DeviceSpec:
    """A device as its vendor describes it.

    Parameters
    ----------
    key
        Name in the table.
    name
        Full name.
    kind
        "cuda" (AMD's devices too, as torch calls them), "tpu" or "cpu".
    memory_bytes
        Memory of one device.
    bytes_per_s
        Rate at which it reads and writes this memory.
    link_bytes_per_s
        Rate to a neighbour in the same box, each way.
    tflops
        Dense 10¹² operations per second by dtype of the operands.
    source
        Where the figures stand.
    """

    key: str
    name: str
    kind: str
    memory_bytes: int
    bytes_per_s: float
    link_bytes_per_s: float
    tflops: Mapping[str, float]
    source: str

    def flops_per_s(self, dtype: str) -> float:
        """Return the peak rate for a dtype; without units for it, that of the next it has."""
        for name in (dtype, *_STAND_INS.get(dtype, ()), "float32"):
            if name in self.tflops:
                return self.tflops[name] * 1e12
        return min(self.tflops.values()) * 1e12


@cache
def devices() -> Mapping[str, DeviceSpec]:
    """Return all devices of the table by name, in its order."""
    text = resources.files("autosplit.hardware").joinpath("devices.toml").read_text("utf-8")
    return MappingProxyType({key: _spec(key, row) for key, row in tomllib.loads(text).items()})


def find(name: str) -> DeviceSpec:
    """Return a device by its name in the table, or as it names itself, where it leaves no doubt.

    Raises
    ------
    UsageError
        With the nearest names, if there is none.
    """
    table = devices()
    wanted = _plain(name)
    if wanted in table:
        return table[wanted]
    words = set(wanted.split("-"))
    parts = {key: set(key.split("-")) for key in table}
    fitting = [key for key in table if words <= parts[key] or parts[key] <= words]
    if len(fitting) == 1:
        return table[fitting[0]]
    close = fitting or difflib.get_close_matches(wanted, table, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    else:
        hint = "autosplit device list shows all of them"
    raise UsageError(f"no device {name!r} in the table", hint=hint)


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _spec(key: str, row: Mapping[str, Any]) -> DeviceSpec:
    return DeviceSpec(
        key=key,
        name=row["name"],
        kind=row["kind"],
        memory_bytes=parse_bytes(row["memory"]),
        bytes_per_s=parse_rate(row["bandwidth"]),
        link_bytes_per_s=parse_rate(row["link"]),
        tflops=MappingProxyType({dtype: float(rate) for dtype, rate in row["tflops"].items()}),
        source=row["source"],
    )
