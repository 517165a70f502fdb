"""Keep freed memory in the process, as every export does when it runs.

By default glibc returns large blocks to the system when they are freed and fetches them again,
zeroed page by page, on the next call: a step of a small model then takes thousands of page
faults, some layers pay for others, and sums over layers do not match a whole step.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# Parameters of mallopt(3), from <malloc.h>, and the largest threshold it takes.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_LARGEST_THRESHOLD = 32 * 2**20

_KEEP = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2**31 - 1, _M_TOP_PAD: 64 * 2**20}
_KEEP_SMALL = {**_KEEP, _M_MMAP_MAX: 65536, _M_MMAP_THRESHOLD: _LARGEST_THRESHOLD}
_DEFAULT = {
    _M_MMAP_MAX: 65536,
    _M_MMAP_THRESHOLD: 128 * 2**10,
    _M_TRIM_THRESHOLD: 128 * 2**10,
    _M_TOP_PAD: 0,
}


@contextmanager
def keep_freed_memory(*, all_sizes: bool = True) -> Iterator[bool]:
    """Let malloc keep what is freed; yields whether the C library can be told so (glibc).

    Parameters
    ----------
    all_sizes
        False gives blocks above 32 MiB back: holes of that size, when a little is cut off them,
        cannot be used again, and the process may come to hold such blocks twice.
    """
    mallopt, trim = _glibc()
    if mallopt is None or trim is None:
        yield False
        return
    try:
        for parameter, value in (_KEEP if all_sizes else _KEEP_SMALL).items():
            mallopt(parameter, value)
        yield True
    finally:
        for parameter, value in _DEFAULT.items():
            mallopt(parameter, value)
        trim(0)


def _glibc() -> tuple[Callable[[int, int], int] | None, Callable[[int], int] | None]:
    try:
        library = ctypes.CDLL(None)
        return library.mallopt, library.malloc_trim
    except (AttributeError, OSError, TypeError):
        return None, None
