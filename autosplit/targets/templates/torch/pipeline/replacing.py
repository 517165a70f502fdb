"""Files and folders written beside their place, then renamed: whole or not there at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from .errors import PipelineError


@contextlib.contextmanager
def replaced(path: Path, *, folder: bool = False) -> Iterator[Path]:
    """Give a place beside ``path`` to write to; move it there if the block succeeds.

    Raises
    ------
    PipelineError
        If the disk refuses; what was at ``path`` is as it was then.
    """
    path = Path(os.path.abspath(path))  # of "." too, the name
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        if folder:
            partial.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        sync(partial)
        move(partial, path)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise PipelineError(f"cannot write {path}: {where}{error.strerror or error}") from None
    finally:
        _remove(partial)


def move(partial: Path, path: Path) -> None:
    """Put ``partial`` at ``path``; a folder there is set aside until that has succeeded."""
    if not path.is_dir():
        os.replace(partial, path)
        return
    old = partial.with_name(f"{partial.name}-old")
    path.rename(old)
    try:
        partial.rename(path)
    except OSError:
        old.rename(path)
        raise
    _remove(old)


def sync(path: Path) -> None:
    """Make the disk hold the content, so that a power cut after the move loses nothing."""
    for each in (*(path.rglob("*") if path.is_dir() else ()), path):
        handle = os.open(each, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
