"""Checks that the frozen data types run when they are built."""

from __future__ import annotations

import math
from collections.abc import Iterable

from autosplit.errors import DataError


def require_finite(owner: object, *fields: str, minimum: float = 0.0) -> None:
    """Refuse fields that are NaN, infinite or below ``minimum``.

    ``None`` passes: whether a field may be absent is said by its type.
    """
    for field in fields:
        value = getattr(owner, field)
        if value is None:
            continue
        if not math.isfinite(value) or value < minimum:
            raise DataError(
                f"{_name(owner)}: {field} is {value}",
                cause=f"{field} must be a finite number of at least {minimum:g}",
            )


def require_unique(owner: object, what: str, names: Iterable[str]) -> None:
    """Refuse a name that appears twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise DataError(f"{_name(owner)}: {what} {name!r} appears twice")
        seen.add(name)


def require_known(owner: object, what: str, names: Iterable[str], known: set[str]) -> None:
    """Refuse a reference to something that does not exist."""
    for name in names:
        if name not in known:
            raise DataError(f"{_name(owner)}: {what} {name!r} does not exist")


def require(owner: object, condition: bool, message: str) -> None:
    """Refuse the object with ``message`` unless ``condition`` holds."""
    if not condition:
        raise DataError(f"{_name(owner)}: {message}")


def _name(owner: object) -> str:
    label = getattr(owner, "name", None)
    kind = type(owner).__name__
    return f"{kind} {label!r}" if isinstance(label, str) else kind
