"""Devices of the table and factors that were fitted, as rich tables and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from autosplit.hardware import DeviceSpec, Fit, assumed
from autosplit.report.styles import HINT, LABEL, STRONG
from autosplit.report.tables import facts, grid
from autosplit.types import FAMILIES
from autosplit.units import format_bytes, format_rate, format_seconds, format_share

_VERSION = (1, 0)
_SHOWN = ("float32", "float16", "bfloat16")


def device_table(devices: Iterable[DeviceSpec]) -> Table:
    """Return the devices of the table, one a line."""
    table = grid("Devices that times can be modelled for")
    table.add_column("name", style=STRONG, no_wrap=True)
    for heading in ("memory", "bandwidth", "link"):
        table.add_column(heading, justify="right", no_wrap=True)
    for dtype in _SHOWN:
        table.add_column(dtype, justify="right", no_wrap=True)
    for device in devices:
        table.add_row(
            device.key,
            format_bytes(device.memory_bytes),
            format_rate(device.bytes_per_s),
            format_rate(device.link_bytes_per_s),
            *(_rate(device, dtype) for dtype in _SHOWN),
        )
    table.caption = Text("dense TFLOP/s by dtype", style=LABEL)
    return table


def device_facts(device: DeviceSpec) -> Table:
    """Return all that the table says of a device, with its source."""
    rates = ", ".join(f"{dtype} {rate:g}" for dtype, rate in device.tflops.items())
    pairs: list[tuple[str, RenderableType]] = [
        ("device", Text(device.name, style=STRONG)),
        ("memory", format_bytes(device.memory_bytes)),
        ("bandwidth", format_rate(device.bytes_per_s)),
        ("link", f"{format_rate(device.link_bytes_per_s)} each way"),
        ("TFLOP/s", Text(f"{rates}, dense")),
        ("source", Text(device.source, style=HINT)),
    ]
    return facts(pairs)


def fit_table(fit: Fit) -> Group:
    """Return the factors of a fit beside what is assumed without one."""
    table = grid("Share of the peak that is reached")
    table.add_column("operators", no_wrap=True)
    for heading in ("fitted", "assumed"):
        table.add_column(heading, justify="right", no_wrap=True)
    default = assumed()
    for family in FAMILIES:
        known = family in fit.fitted
        table.add_row(
            family,
            format_share(fit.factors.efficiency[family]) if known else "-",
            format_share(default.efficiency[family]),
        )
    table.add_row(
        "start of one", format_seconds(fit.factors.start_s), format_seconds(default.start_s)
    )
    error = Text(
        f"error of {fit.layers} layers: median {format_share(fit.median_error)}, "
        f"worst {format_share(fit.worst_error)}, of their sum {format_share(fit.total_error)}",
        style=LABEL,
    )
    return Group(table, error)


def fit_warning(fit: Fit, device: DeviceSpec) -> str:
    """Return what speaks against carrying the factors to another device; else empty."""
    if not fit.above_peak:
        return ""
    return (
        f"{', '.join(fit.above_peak)} run faster than the figures of {device.key} allow: they "
        "understate this device, so these factors describe it alone and no other of the table"
    )


def device_data(device: DeviceSpec) -> dict[str, Any]:
    """Return a device for programs."""
    return {
        "key": device.key,
        "name": device.name,
        "kind": device.kind,
        "memory_bytes": device.memory_bytes,
        "bytes_per_s": device.bytes_per_s,
        "link_bytes_per_s": device.link_bytes_per_s,
        "flops_per_s": {dtype: rate * 1e12 for dtype, rate in device.tflops.items()},
        "source": device.source,
    }


def devices_data(devices: Iterable[DeviceSpec]) -> dict[str, Any]:
    """Return devices for programs."""
    return {
        "schema": "autosplit.report.devices",
        "version": list(_VERSION),
        "devices": [device_data(device) for device in devices],
    }


def fit_data(fit: Fit) -> dict[str, Any]:
    """Return a fit for programs."""
    return {
        "schema": "autosplit.report.fit",
        "version": list(_VERSION),
        "efficiency": dict(fit.factors.efficiency),
        "start_s": fit.factors.start_s,
        "device": fit.factors.device,
        "fitted": list(fit.fitted),
        "above_peak": list(fit.above_peak),
        "median_error": fit.median_error,
        "worst_error": fit.worst_error,
        "total_error": fit.total_error,
        "layers": fit.layers,
    }


def _rate(device: DeviceSpec, dtype: str) -> str:
    return f"{device.tflops[dtype]:g}" if dtype in device.tflops else "-"
