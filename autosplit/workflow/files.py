"""Files that the steps read and write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from autosplit.errors import DataError
from autosplit.serialize import SCHEMAS, dump, load, parse_json, read_text
from autosplit.types import ExportedStage, Plan, Profile

if TYPE_CHECKING:
    from autosplit.readers import Workload

PathLike: TypeAlias = str | os.PathLike[str]


def save(value: Profile | Plan, path: PathLike, *, force: bool = False) -> None:
    """Write a profile or plan to ``path``, which must not exist unless ``force``."""
    dump(value, path, force=force)


def read(path: PathLike) -> Profile | Plan:
    """Read a profile or plan, told apart by content; of an export its plan."""
    place = Path(path)
    if place.is_dir():
        place = place / "plan.json"
        if not place.exists():
            raise DataError(f"{path} is not an export", cause="it holds no plan.json")
    data = parse_json(read_text(place), str(place))
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema == SCHEMAS[Plan][0]:
        return load(Plan, place)
    if schema != SCHEMAS[Profile][0]:
        raise DataError(
            f"{path} is neither a profile nor a plan",
            cause=f"its schema is {schema!r}" if schema else "it names no schema",
            hint="autosplit profile and autosplit plan write such files",
        )
    return load(Profile, place)


def read_export(folder: PathLike) -> tuple[ExportedStage, ...]:
    """Return what stands in an export folder, stage by stage."""
    place = Path(folder)
    routing = parse_json(read_text(place / "routing.json"), str(place / "routing.json"))
    rewrites = parse_json(read_text(place / "report.json"), str(place / "report.json"))
    try:
        return tuple(
            ExportedStage(
                index=index,
                lines=len(read_text(place / "stages" / f"stage_{index}.py").splitlines()),
                weights_bytes=sum(
                    path.stat().st_size for path in (place / "weights").glob(f"*_{index}.*")
                ),
                take=tuple(route["take"]),
                give=tuple(route["give"]),
                rewrites=len(rewrites["stages"][index]["rewrites"]),
            )
            for index, route in enumerate(routing["stages"])
        )
    except (KeyError, IndexError, TypeError):
        raise DataError(
            f"{folder} is not a whole export",
            cause="routing.json or report.json is not what export writes",
        ) from None


def read_profile(path: PathLike) -> Profile | Workload:
    """Read anything that can be planned: a profile, or a file of another tool."""
    from autosplit import readers

    return readers.read(path)


def as_profile(profile: Profile | PathLike) -> Profile:
    """Return a profile, read from its file where a path is given."""
    if isinstance(profile, Profile):
        return profile
    found = read_profile(profile)
    if not isinstance(found, Profile):
        raise DataError(f"{profile} is no profile of a model", cause="it brings its own devices")
    return found


def at_sizes(profile: Profile) -> list[Profile]:
    """Return a profile at each batch size it holds."""
    sizes = sorted({dict(point.sizes).get("batch", 0) for point in profile.sweep} - {0})
    return [at_batch(profile, size) for size in sizes] or [profile]


def at_batch(profile: Profile, batch_size: int | None) -> Profile:
    """Return a profile at a batch size, itself where that is its own."""
    if batch_size in (None, profile.model.batch_size):
        return profile
    return profile.at(batch_size=batch_size)


def has_text(path: Path, text: str) -> bool:
    """Whether a file exists and holds exactly ``text``."""
    return path.is_file() and read_text(path) == text
