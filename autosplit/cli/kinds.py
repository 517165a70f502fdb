"""What a file is, so that one of the wrong kind is refused with the command that takes it."""

from __future__ import annotations

from pathlib import Path

from autosplit.errors import AutosplitError, UsageError
from autosplit.readers import READERS
from autosplit.serialize import SCHEMAS, parse_json, read_text
from autosplit.types import Plan, Profile

PROFILE, PLAN, EXPORT, WORKLOAD = "a profile", "a plan", "an export", "a workload"
_MODEL, _FOLDER = "Python code", "a folder"

_NEXT = {
    PROFILE: "autosplit plan {} makes a plan of it",
    PLAN: "autosplit export {} makes an export of it",
    EXPORT: "autosplit verify {} checks it",
    WORKLOAD: "autosplit plan {} places it on its devices",
    _MODEL: "autosplit profile {}:NAME measures the model that NAME builds",
}
_SCHEMAS = {SCHEMAS[Profile][0]: PROFILE, SCHEMAS[Plan][0]: PLAN}


def expect(path: Path, *wanted: str) -> None:
    """Refuse a file or folder that is known to be of another kind.

    What is not there, or of no known kind, is left to its reader.

    Raises
    ------
    UsageError
        Saying what it is, and which command takes it.
    """
    kind = _kind(path)
    if kind is None or kind in wanted or (kind == _FOLDER and EXPORT in wanted):
        return
    *others, last = wanted
    names = f"{', '.join(others)} or {last}" if others else last
    hint = _NEXT.get(kind)
    raise UsageError(
        f"{path} is {kind}, not {names}",
        hint=hint.format(path) if hint else None,
    )


def _kind(path: Path) -> str | None:
    if path.is_dir():
        return EXPORT if (path / "plan.json").exists() else _FOLDER
    if not path.is_file():
        return None
    if path.suffix == ".py":
        return _MODEL
    try:
        text = read_text(path)
        for name in READERS:
            if name != "profile" and READERS[name].recognises(text):
                return WORKLOAD
        data = parse_json(text, str(path))
    except AutosplitError:
        return None
    return _SCHEMAS.get(data.get("schema", "")) if isinstance(data, dict) else None
