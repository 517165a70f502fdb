"""Results of a long run, kept as they come, so that a run that was killed can go on.

One JSON object a line, each on disk before the next is made. A line that was cut off when the
process died is dropped; those before it are whole.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, TypeVar

from autosplit.errors import DataError
from autosplit.serialize import from_data, to_data

SCHEMA = "autosplit.journal"
VERSION = (1, 1)
_PART = "part"

T = TypeVar("T")


class Journal:
    """Records of one run, in memory and, if there is a path, in a file.

    Parameters
    ----------
    path
        The file; made with the first record. None keeps nothing.
    key
        What tells runs apart whose records may be mixed.
    force
        Drop what another run has left in the file.

    Raises
    ------
    DataError
        If the file holds something else than records of such a run, and not ``force``.
    """

    def __init__(self, path: Path | None = None, key: str = "", *, force: bool = False) -> None:
        self._lines = _Lines(path, key, force)
        self._part: str | None = None

    def __len__(self) -> int:
        return len(self._own())

    def part(self, name: str) -> Journal:
        """Return the records of one part of the run, which stand in the same file."""
        part = copy.copy(self)
        part._part = name
        return part

    def records(self, kind: type[T]) -> list[T]:
        """Return what was kept of one frozen type."""
        name = kind.__name__
        place = f"{self._lines.path}: {name}"
        return [from_data(kind, record[name], place) for record in self._own() if name in record]

    def append(self, value: Any) -> None:
        """Keep a frozen value; it is on disk when this returns."""
        part = {} if self._part is None else {_PART: self._part}
        self._lines.append({**part, type(value).__name__: to_data(value)})

    def _own(self) -> list[dict[str, Any]]:
        return [record for record in self._lines.records if record.get(_PART) == self._part]


class _Lines:
    """The file and what stands in it."""

    def __init__(self, path: Path | None, key: str, force: bool) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._header = {"schema": SCHEMA, "version": list(VERSION), "key": key}
        self._whole_bytes = 0
        if path is not None and path.exists():
            self._read(path, force)

    def append(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self.path is None:
            return
        lines = [record] if self._whole_bytes else [self._header, record]
        text = b"".join(map(_line, lines))
        with self.path.open("r+b" if self.path.exists() else "wb") as file:
            file.truncate(self._whole_bytes)
            file.seek(self._whole_bytes)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        self._whole_bytes += len(text)

    def _read(self, path: Path, force: bool) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path}", cause=error.strerror) from None
        whole = [(line, _record(line)) for line in content.splitlines(True) if line[-1:] == b"\n"]
        if not whole or whole[0][1] != self._header:
            if force or _line(self._header).startswith(content):
                return
            raise DataError(
                f"{path} holds results of another run",
                cause="of another model, with other options, or on another machine",
                hint="delete it, give another --output, or drop it with --force",
            )
        self._whole_bytes = len(whole[0][0])
        for line, record in whole[1:]:
            if record is None:
                break
            self.records.append(record)
            self._whole_bytes += len(line)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
