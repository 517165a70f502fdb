"""What a reader of foreign or own files is, and the numbers it may read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from autosplit.errors import DataError
from autosplit.readers.workload import Workload
from autosplit.registry import Registry
from autosplit.types import Profile


class Reader(Protocol):
    """One file format."""

    def recognises(self, text: str) -> bool:
        """Return whether the text is of this format, judged by its content."""
        ...

    def read(self, text: str, source: str) -> Profile | Workload:
        """Return what the text describes; ``source`` names it in messages.

        Raises
        ------
        DataError
            Naming the place and field at fault.
        """
        ...


READERS: Registry[Reader] = Registry("file format")


def number(value: Any, place: str) -> float:
    """Return a finite number of at least 0, or refuse it with its place."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise DataError(f"{place}: expected a number, found {value!r}")
    if not math.isfinite(value) or value < 0:
        raise DataError(f"{place} is {value}", cause="it must be a finite number of at least 0")
    return float(value)


def field(entry: Mapping[str, Any], name: str, place: str) -> Any:
    """Return a field that must be there."""
    if name not in entry:
        raise DataError(f"{place}: field {name!r} is missing")
    return entry[name]
