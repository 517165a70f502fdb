"""Scalars in the files that TensorBoard reads, without TensorBoard.

A file is a sequence of records: length (8 bytes), checksum of the length, an ``Event`` message of
protocol buffers, checksum of the message. Checksums are CRC-32C, rotated and offset as TFRecord
defines. Of an ``Event`` the fields ``wall_time`` (1), ``step`` (2), ``file_version`` (3) and
``summary`` (5) are used; a summary holds values (1) with ``tag`` (1) and ``simple_value`` (2).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path


class EventLog:
    """Appends scalars to a file of its own in a folder."""

    def __init__(self, folder: Path) -> None:
        host = socket.gethostname()
        name = f"events.out.tfevents.{time.time():.6f}.{host}.{os.getpid()}"
        self._file = (folder / name).open("wb")
        self._append(_bytes(3, b"brain.Event:2"))

    def write(self, step: int, values: dict[str, float]) -> None:
        """Write the scalars of one step."""
        pairs = (
            _bytes(1, _bytes(1, name.encode()) + _key(2, 5) + struct.pack("<f", value))
            for name, value in values.items()
        )
        self._append(_key(2, 0) + _varint(step) + _bytes(5, b"".join(pairs)))

    def _append(self, fields: bytes) -> None:
        event = _key(1, 1) + struct.pack("<d", time.time()) + fields
        self._file.write(record(event))
        self._file.flush()


def record(data: bytes) -> bytes:
    """Return data with its length and checksums."""
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    value = crc32c(data)
    rotated = (value >> 15 | value << 17) + 0xA282EAD8
    return struct.pack("<I", rotated & 0xFFFFFFFF)


def crc32c(data: bytes) -> int:
    """Return the Castagnoli checksum (RFC 3720, B.4)."""
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ _TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def _table_entry(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value


_TABLE = tuple(map(_table_entry, range(256)))


def _bytes(field: int, data: bytes) -> bytes:
    return _key(field, 2) + _varint(len(data)) + data


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))
