"""Bytes, seconds and rates as people write and read them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal

from autosplit.errors import DataError

_BYTES: dict[str, float] = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_BITS: dict[str, float] = {"kbit": 125.0, "mbit": 125e3, "gbit": 125e6, "tbit": 125e9}
_SECONDS: dict[str, float] = {
    "": 1.0,
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "m": 60.0,
    "h": 3600.0,
}
_QUANTITY = re.compile(r"([0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?)\s*([a-zµ]*)", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the bytes in ``"16GiB"``, ``"800 MB"`` or ``"4096B"``; a unit is left out of 0 alone.

    Raises
    ------
    DataError
        If the text is not a size.
    """
    return round(_parse(text, _BYTES, "a size", "16GiB, 800MB, 4096B"))


def parse_rate(text: str) -> float:
    """Return bytes per second in ``"10GB/s"`` or ``"100Gbit/s"``.

    Raises
    ------
    DataError
        If the text is not a rate above zero.
    """
    amount = text.strip().removesuffix("/s")
    rate = _parse(amount, {**_BYTES, **_BITS}, "a rate", "10GB/s, 100Gbit/s", shown=text)
    if rate == 0:
        raise DataError(f"{text!r} is not a rate", cause="nothing could ever be sent")
    return rate


def parse_seconds(text: str) -> float:
    """Return the seconds in ``"5us"``, ``"1.5 ms"``, ``"2min"`` or ``"60"``.

    Raises
    ------
    DataError
        If the text is not a time.
    """
    return _parse(text, _SECONDS, "a time", "5us, 1.5ms, 60")


def parse_latency(text: str) -> float:
    """Return the seconds in ``"5us"``; a unit is left out of 0 alone.

    Raises
    ------
    DataError
        If the text is not a time with a unit.
    """
    units = {unit: scale for unit, scale in _SECONDS.items() if unit}
    return _parse(text, units, "a time", "5us, 1.5ms")


def _parse(
    text: str,
    units: Mapping[str, float],
    what: str,
    examples: str,
    shown: str | None = None,
) -> float:
    match = _QUANTITY.fullmatch(text.strip())
    if match and not match[2] and "" not in units:
        if float(match[1]) == 0:
            return 0.0
        raise DataError(f"{shown or text!r} has no unit", hint=f"write it like {examples}")
    scale = units.get(match[2].lower()) if match else None
    if match is None or scale is None:
        raise DataError(f"{shown or text!r} is not {what}", hint=f"write it like {examples}")
    if not math.isfinite(float(match[1]) * scale):
        raise DataError(f"{shown or text!r} is not {what}", cause="it is not finite")
    # In decimal, so that 5us is 5e-06 and not the number beside it.
    return float(Decimal(match[1]) * Decimal(str(scale)))


def exact_bytes(count: int) -> str:
    """Return a size that ``parse_bytes`` reads as exactly this one: ``"80GiB"``."""
    units = {"TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10}
    unit = next((unit for unit, scale in units.items() if count and count % scale == 0), "B")
    return f"{count // units.get(unit, 1)}{unit}"


def exact_rate(bytes_per_s: float) -> str:
    """Return a rate that ``parse_rate`` reads as exactly this one: ``"1.25GB/s"``."""
    return _exact(bytes_per_s, {"GB/s": 10**9, "MB/s": 10**6, "kB/s": 10**3, "B/s": 1})


def exact_seconds(seconds: float) -> str:
    """Return a time that ``parse_latency`` reads as exactly this one: ``"5us"``."""
    return _exact(seconds, {"s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9})


def _exact(value: float, units: Mapping[str, float]) -> str:
    fitting = (unit for unit, scale in units.items() if value >= scale)
    unit = next(fitting, list(units)[-1])
    amount = Decimal(str(value)) / Decimal(str(units[unit]))
    return f"{amount.normalize():f}{unit}"


def format_bytes(count: float) -> str:
    """Return a byte count with a binary unit and three digits: ``"16.0 GiB"``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 999.5 or unit == "TiB":
            return f"{value:.0f} B" if unit == "B" else f"{_three(value)} {unit}"
        value /= 1024
    raise AssertionError("unreachable")


def format_seconds(seconds: float) -> str:
    """Return a time with three digits: ``"1.23 ms"``."""
    if seconds == 0:
        return "0 s"
    for unit, scale in (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3)):
        if abs(seconds) < 999.5 * scale:
            return f"{_three(seconds / scale)} {unit}"
    for unit, scale, least in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if abs(seconds) < least:
            return f"{seconds / scale:.0f} {unit}" if scale > 1 else f"{_three(seconds)} {unit}"
    days = seconds / 86_400
    return f"{days:.0f} days" if abs(days) < 99_999.5 else f"{days:.2g} days"


def format_rate(bytes_per_s: float) -> str:
    """Return a rate with a decimal unit, as links are sold: ``"10.0 GB/s"``."""
    value = float(bytes_per_s)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{_three(value)} {unit}/s"
        value /= 1000
    return f"{_three(value)} GB/s"


def format_share(share: float) -> str:
    """Return a share of one as a percentage: ``"61 %"``, ``"0.4 %"``."""
    percent = 100 * share
    if percent and abs(percent) < 0.05:
        return "<0.1 %"
    return f"{percent:.1f} %" if percent and abs(percent) < 9.95 else f"{percent:.0f} %"


def counted(count: int, noun: str) -> str:
    """Return a number of things, such as ``"1 stage"``, ``"2 copies"`` or ``"4 micro-batches"``."""
    if count == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{count} {noun[:-1]}ies"
    return f"{count} {noun}{'es' if noun.endswith('ch') else 's'}"


def _three(value: float) -> str:
    magnitude = abs(value)
    if magnitude < 9.995:
        return f"{value:.2f}"
    return f"{value:.1f}" if magnitude < 99.95 else f"{value:.0f}"
