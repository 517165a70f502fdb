"""Versioned JSON for the frozen types, and the only writes to disk: beside, then rename.

The decoder is driven by type annotations: every value in a file is checked against the type of
the field it fills, and a mismatch names its place (``layers[3].forward.median_s``).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

from autosplit.errors import AutosplitError, DataError
from autosplit.program import Program
from autosplit.types import Plan, Profile

T = TypeVar("T")

SCHEMAS: dict[type, tuple[str, tuple[int, int]]] = {
    Profile: ("autosplit.profile", (1, 3)),
    Plan: ("autosplit.plan", (1, 3)),
}

# ---------------------------------------------------------------- encode


def to_data(value: Any) -> Any:
    """Return ``value`` as JSON data: dataclasses become objects, tuples become lists."""
    if isinstance(value, (list, tuple)):
        return [to_data(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_data(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        return {name: to_data(item) for name, item in _fields(value).items()}
    return value


def _fields(value: object) -> dict[str, Any]:
    """Return what stands in the fields of a dataclass, by name."""
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def dumps(value: Any) -> str:
    """Return a schema-marked, readable JSON text of a ``Profile`` or ``Plan``."""
    schema, version = SCHEMAS[type(value)]
    data = {"schema": schema, "version": list(version), **to_data(value)}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def digest(value: Any) -> str:
    """Return a short digest of a frozen value's content.

    Of a program neither the example sizes count, since it is the same at every batch size, nor
    where its lines stand: files move, and lines move in them.
    """
    if isinstance(value, Program):
        value = dataclasses.replace(
            value,
            symbols=tuple(dataclasses.replace(symbol, example=0) for symbol in value.symbols),
            nodes=tuple(dataclasses.replace(node, location=None) for node in value.nodes),
            warnings=(),
        )
    # The encoder walks tuples and dictionaries by itself, several times faster than ``to_data``.
    text = json.dumps(value, default=_fields, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- decode


def from_data(kind: Any, data: Any, place: str = "") -> Any:
    """Build a value of type ``kind`` from JSON data.

    Raises
    ------
    DataError
        Naming the place in the file, what was expected and what stood there.
    """
    if kind in _WORDS:
        return _from_scalar(kind, data, place)
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        return _from_union(typing.get_args(kind), data, place)
    if origin is Literal:
        choices = typing.get_args(kind)
        if data not in choices:
            raise _mismatch(place, f"one of {', '.join(map(repr, choices))}", data)
        return data
    if origin is tuple:
        return _from_tuple(typing.get_args(kind), data, place)
    if origin is dict:
        key_kind, item_kind = typing.get_args(kind)
        if not isinstance(data, dict):
            raise _mismatch(place, "an object", data)
        return {
            from_data(key_kind, key, place): from_data(item_kind, item, f"{place}.{key}")
            for key, item in data.items()
        }
    if dataclasses.is_dataclass(kind):
        return _from_object(kind, data, place)
    raise TypeError(f"no file holds a {kind}")


def _from_union(kinds: tuple[Any, ...], data: Any, place: str) -> Any:
    if data is None and type(None) in kinds:
        return None
    failures: list[DataError] = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return from_data(kind, data, place)
        except DataError as error:
            failures.append(error)
    raise failures[-1]


def _from_tuple(kinds: tuple[Any, ...], data: Any, place: str) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise _mismatch(place, "a list", data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(from_data(kinds[0], item, f"{place}[{i}]") for i, item in enumerate(data))
    if len(kinds) != len(data):
        raise _mismatch(place, f"a list of {len(kinds)}", data)
    pairs = zip(kinds, data, strict=True)
    return tuple(from_data(kind, item, f"{place}[{i}]") for i, (kind, item) in enumerate(pairs))


def _from_object(kind: Any, data: Any, place: str) -> Any:
    if not isinstance(data, dict):
        raise _mismatch(place, "an object", data)
    hints, fields = _described(kind)
    unknown = sorted(set(data) - set(fields))
    if unknown:
        raise DataError(f"{_at(place)}: unknown field {unknown[0]!r} in {kind.__name__}")
    values: dict[str, Any] = {}
    for name, field in fields.items():
        where = f"{place}.{name}" if place else name
        if name in data:
            values[name] = from_data(hints[name], data[name], where)
        elif _required(field):
            raise DataError(f"{where} is missing", cause=f"{kind.__name__} needs it")
    try:
        return kind(**values)
    except DataError as error:
        raise DataError(f"{_at(place)}: {error.message}", cause=error.cause) from None


@functools.cache
def _described(kind: Any) -> tuple[dict[str, Any], dict[str, dataclasses.Field[Any]]]:
    """Return the types of the fields of a dataclass, and the fields, by name."""
    hints = typing.get_type_hints(kind)
    return hints, {field.name: field for field in dataclasses.fields(kind)}


def _required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
}


def _from_scalar(kind: Any, data: Any, place: str) -> Any:
    if kind is float and isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    if kind is int and isinstance(data, int) and not isinstance(data, bool):
        return data
    if kind in (str, bool) and isinstance(data, kind):
        return data
    raise _mismatch(place, _WORDS[kind], data)


def _mismatch(place: str, expected: str, found: Any) -> DataError:
    shown = json.dumps(found, default=str)
    if len(shown) > 40:
        shown = shown[:37] + "..."
    return DataError(f"{_at(place)}: expected {expected}, found {shown}")


def _at(place: str) -> str:
    return place or "the file"


def loads(kind: type[T], text: str, source: str = "the text") -> T:
    """Parse a schema-marked JSON text into a ``Profile`` or ``Plan``.

    Raises
    ------
    DataError
        If the text is not JSON, is of another kind or of an unknown major version, or does not
        fit the type.
    """
    schema, version = SCHEMAS[kind]
    data = parse_json(text, source)
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise DataError(
            f"{source} is not an {schema} file",
            cause=f"its schema is {found!r}" if found else "it names no schema",
        )
    written = data.pop("version", None)
    del data["schema"]
    numbers = isinstance(written, list) and all(type(number) is int for number in written)
    if not numbers or not written or written[0] != version[0]:
        raise DataError(
            f"{source} has version {written} of {schema}",
            cause=f"this autosplit reads version {version[0]}.x",
            hint="use the autosplit that wrote it, or make the file again",
        )
    try:
        result: T = from_data(kind, data)
    except DataError as error:
        raise DataError(f"{source}: {error.message}", cause=error.cause) from None
    return result


def parse_json(text: str, source: str) -> Any:
    """Parse strict JSON: NaN, infinities and duplicate keys are refused with their place."""

    def constant(name: str) -> Any:
        shown = name if len(name) <= 40 else f"{name[:37]}..."
        raise DataError(f"{source}: {shown} is not a number that can be planned with")

    def whole(digits: str) -> int:
        # What no float can hold cannot be computed with: 309 digits and more.
        return int(digits) if math.isfinite(float(digits)) else constant(digits)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise DataError(f"{source}: key {key!r} appears twice in one object")
            found[key] = value
        return found

    try:
        return json.loads(
            text,
            parse_constant=constant,
            parse_int=whole,
            object_pairs_hook=pairs,
        )
    except json.JSONDecodeError as error:
        raise DataError(
            f"{source} is not JSON",
            cause=f"line {error.lineno}, column {error.colno}: {error.msg}",
            hint="the file may be cut off; make it again",
        ) from None
    except RecursionError:
        raise DataError(f"{source} is nested too deeply") from None


# ---------------------------------------------------------------- files


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a UTF-8 file, or raise ``DataError`` saying why not."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise DataError(f"{path} does not exist") from None
    except IsADirectoryError:
        raise DataError(f"{path} is a folder, not a file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is not a text file") from None
    except OSError as error:
        raise DataError(f"cannot read {path}", cause=error.strerror) from None


def load(kind: type[T], path: str | os.PathLike[str]) -> T:
    """Read a ``Profile`` or ``Plan`` from a file."""
    return loads(kind, read_text(path), str(path))


def refuse_existing(
    path: str | os.PathLike[str], force: bool, inputs: Iterable[str | os.PathLike[str]] = ()
) -> None:
    """Refuse to replace ``path`` unless ``force``, and ``inputs`` ever: called before any work."""
    try:
        lost = Path(path).resolve() in {Path(other).resolve() for other in inputs}
        exists = Path(path).exists()
    except OSError as error:
        raise AutosplitError(f"cannot write {path}", cause=error.strerror) from None
    if lost:
        raise AutosplitError(
            f"{path} is another file of this command, and would be lost",
            hint="name another file to write",
        )
    if exists and not force:
        raise AutosplitError(f"{path} exists", hint="pass --force to replace it")


def write_text(path: str | os.PathLike[str], text: str, *, force: bool = False) -> None:
    """Write a file beside its place, then rename: a reader never sees half of it.

    Raises
    ------
    AutosplitError
        If the file exists and ``force`` is not set, or the disk refuses.
    """
    target = Path(path)
    refuse_existing(target, force)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.chmod(temporary, 0o666 & ~_umask())
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise AutosplitError(f"cannot write {path}", cause=error.strerror) from None


def dump(value: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a ``Profile`` or ``Plan`` to a file."""
    write_text(path, dumps(value), force=force)


def dump_data(data: Any, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write plain JSON data, in the format of another tool, to a file."""
    write_text(path, json.dumps(data, ensure_ascii=False, allow_nan=False) + "\n", force=force)


def dump_text(text: str, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a text in a format of its own (TOML, CSV, DOT) to a file."""
    write_text(path, text, force=force)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
