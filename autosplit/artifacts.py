"""The one writer of export folders: made beside its place, then moved there in one step.

Killed at any moment, it leaves the old folder whole or the new one whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from autosplit.errors import AutosplitError
from autosplit.types import Artifact

_MARK = "routing.json"
"""A file that every export has: only a folder that holds it is replaced."""

_MANIFEST = "export.json"
_WEIGHTS = "weights"

TO_EDIT = "data.py"
"""The file that is there to be edited."""


def write_folder(
    destination: str | os.PathLike[str],
    artifacts: Iterable[Artifact],
    fill: Callable[[Path], None] = lambda folder: None,
    *,
    force: bool = False,
) -> None:
    """Write text files, and whatever ``fill`` writes, as one folder.

    What people have changed or added in an earlier export there stays; see ``files_of_others``.

    Parameters
    ----------
    destination
        The folder.
    artifacts
        Text files in it; ``export.json`` keeps their digests.
    fill
        Called with the unfinished folder to write what is not text.
    force
        Replace an earlier export.

    Raises
    ------
    AutosplitError
        If the folder exists and may not be replaced, or the disk refuses. Nothing is left
        behind then, and the old folder is as it was.
    """
    target = Path(destination).resolve()
    refuse_folder(target, force=force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        with _beside(target) as folder:
            every = tuple(artifacts)
            for artifact in (*every, _manifest(every)):
                _write(folder, artifact)
            fill(folder)
            for old, new in files_of_others(target).items():
                _take_over(target / old, folder / new)
            _sync_tree(folder)
            _put(folder, target)
            _sync(target.parent)
    except OSError as error:
        raise AutosplitError(f"cannot write {destination}", cause=_reason(error)) from None


def refuse_folder(destination: str | os.PathLike[str], *, force: bool) -> None:
    """Refuse a destination that exists, unless ``force`` and it is an export or empty."""
    target = Path(destination)
    if not target.exists():
        return
    if not force:
        raise AutosplitError(f"{target} exists", hint="pass --force to replace it")
    if not target.is_dir():
        raise AutosplitError(f"{target} is a file, not a folder")
    if any(target.iterdir()) and not (target / _MARK).is_file():
        raise AutosplitError(
            f"{target} is not an export, and --force replaces exports alone",
            cause=f"it holds files but no {_MARK}",
            hint="choose another folder, or remove this one yourself",
        )


# ---------------------------------------------------------------- what is not the export's own


def files_of_others(destination: str | os.PathLike[str]) -> dict[str, str]:
    """Return the files of an export that people have changed or added, weights left out.

    Returns
    -------
    dict
        Each path in the folder, and the one under which the next export keeps it:
        ``data.py``, which is there to be edited, and added files where they are (beside it
        stands ``data.py.new``, as the export writes it); other changed files as
        ``NAME.edited``.
    """
    folder = Path(destination)
    digests = _digests(folder)
    if not digests:  # What an older version wrote, if anything.
        return {TO_EDIT: TO_EDIT} if (folder / TO_EDIT).is_file() else {}
    found = {}
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        written = digests.get(name)
        if written is None or path.is_symlink() or _digest(path.read_bytes()) != written:
            in_place = written is None or name == TO_EDIT
            found[name] = name if in_place else f"{name}.edited"
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files of an export outside of its weights; a link counts as a file."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        links = {name for name in folders if (here / name).is_symlink()}
        left_out = {"__pycache__", *((_WEIGHTS,) if here == folder else ())}
        folders[:] = sorted(set(folders) - links - left_out)
        yield from (
            here / name for name in sorted({*files, *links}) if here / name != folder / _MANIFEST
        )


def _take_over(old: Path, new: Path) -> None:
    """Let the new folder hold a file of the old one, in no more space; nothing is lost."""
    if new.exists() and new.name == TO_EDIT:
        new.rename(new.with_name(f"{new.name}.new"))
    while new.exists():
        new = new.with_name(f"{new.name}.edited")
    new.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(old, new, follow_symlinks=False)
    except OSError:
        shutil.copy2(old, new, follow_symlinks=False)


def _manifest(artifacts: Iterable[Artifact]) -> Artifact:
    files = {each.path: _digest(each.text.encode()) for each in artifacts}
    if TO_EDIT in files:
        files[f"{TO_EDIT}.new"] = files[TO_EDIT]
    data = {"schema": "autosplit.export", "version": [1, 0], "files": files}
    return Artifact(_MANIFEST, json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def _digests(folder: Path) -> dict[str, str]:
    """Return the digests of the text files as they were written; none for an older export."""
    try:
        files = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))["files"]
        return {str(name): str(digest) for name, digest in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# ---------------------------------------------------------------- beside, then into place


def _prefix(target: Path) -> str:
    return f".{target.name}.partial-"


@contextlib.contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Make a folder next to ``target``; what is there at the end is removed."""
    folder = Path(tempfile.mkdtemp(dir=target.parent, prefix=f"{_prefix(target)}{os.getpid()}-"))
    folder.chmod(0o777 & ~_umask())
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(target: Path) -> None:
    """Remove what killed writers of the same folder left beside it."""
    for path in target.parent.glob(f"{_prefix(target)}*"):
        owner = path.name.removeprefix(_prefix(target)).partition("-")[0]
        if owner.isdigit() and not _is_running(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _put(folder: Path, target: Path) -> None:
    """Move ``folder`` to ``target``; an old folder there ends up where ``folder`` was."""
    if not target.exists():
        folder.rename(target)
    elif not _exchange(folder, target):
        # No exchange on this system: between the two renames the old folder is beside.
        old = folder.with_name(f"{folder.name}-old")
        target.rename(old)
        try:
            folder.rename(target)
        except OSError:
            old.rename(target)
            raise
        shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step where the system can; return whether it could."""
    at_working_directory, exchange_flag = -100, 2
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here = at_working_directory
    failed = rename(here, os.fsencode(one), here, os.fsencode(other), exchange_flag)
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number))


# ---------------------------------------------------------------- files


def _write(folder: Path, artifact: Artifact) -> None:
    path = folder.joinpath(*artifact.path.split("/"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(artifact.text, encoding="utf-8", newline="\n")
    if artifact.executable:
        path.chmod(path.stat().st_mode | 0o111)


def _sync_tree(folder: Path) -> None:
    """Make the disk hold everything, so that a power cut after the move loses nothing."""
    for path in sorted(folder.rglob("*")):
        _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
