"""Results of a long run, kept as they come, so that a run that was killed can go on.

One JSON object a line, each on disk before the next is made. A line that was cut off when the
process died is dropped; those before it are whole.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, TypeVar

from autosplit.errors import DataError
from autosplit.serialize import from_data, to_data

SCHEMA = "autosplit.journal"
VERSION = (1, 0)

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
        self._path = path
        self._header = {"schema": SCHEMA, "version": list(VERSION), "key": key}
        self._records: list[dict[str, Any]] = []
        self._whole_bytes = 0
        if path is not None and path.exists():
            self._read(path, force)

    def __len__(self) -> int:
        return len(self._records)

    def records(self, kind: type[T]) -> list[T]:
        """Return what was kept of one frozen type."""
        return [
            from_data(kind, record.get(kind.__name__), f"{self._path}: {kind.__name__}")
            for record in self._records
            if kind.__name__ in record
        ]

    def append(self, value: Any) -> None:
        """Keep a frozen value; it is on disk when this returns."""
        record = {type(value).__name__: to_data(value)}
        self._records.append(record)
        if self._path is None:
            return
        lines = [record] if self._whole_bytes else [self._header, record]
        text = b"".join(map(_line, lines))
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
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
            self._records.append(record)
            self._whole_bytes += len(line)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, allow_nan=False).encode() + b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
