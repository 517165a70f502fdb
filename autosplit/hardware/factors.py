"""Which share of a device's peak each family of operators reaches."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autosplit.checks import require, require_finite
from autosplit.errors import DataError
from autosplit.serialize import read_text
from autosplit.types import FAMILIES, Family

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_ASSUMED: dict[Family, float] = {
    "product": 0.7,
    "convolution": 0.5,
    "attention": 0.5,
    "lookup": 0.6,
    "normalization": 0.7,
    "pointwise": 0.8,
    "copy": 0.8,
}
_ASSUMED_START_S = 5e-6


@dataclass(frozen=True)
class Factors:
    """How far a device stays behind its data sheet.

    Parameters
    ----------
    efficiency
        Share of the roofline that a family of operators reaches. Above one where a device is
        faster than the table says.
    start_s
        Time that starting one operation costs.
    source
        Where they come from, for a person.
    device
        Key of the device in the table whose peak they are shares of; empty for any.
    """

    efficiency: Mapping[Family, float]
    start_s: float
    source: str
    device: str = ""

    def __post_init__(self) -> None:
        require_finite(self, "start_s")
        for family in FAMILIES:
            share = self.efficiency.get(family, 0.0)
            require(self, 0 < share < float("inf"), f"efficiency of {family} is {share}")

    def to_toml(self) -> str:
        """Return the text of a factors file."""
        rows = [f"{family} = {self.efficiency[family]!r}" for family in FAMILIES]
        head = [f"source = {json.dumps(self.source, ensure_ascii=False)}"]
        if self.device:
            head.append(f"device = {json.dumps(self.device, ensure_ascii=False)}")
        return "\n".join([*head, f"start_s = {self.start_s!r}", "", "[efficiency]", *rows]) + "\n"


def assumed() -> Factors:
    """Return what is assumed of a device of which nothing has been measured."""
    return Factors(_ASSUMED, _ASSUMED_START_S, "assumed")


def read_factors(path: str | os.PathLike[str]) -> Factors:
    """Read a factors file; families that it leaves out keep what is assumed.

    Raises
    ------
    DataError
        If it is not such a file.
    """
    try:
        data = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise DataError(f"{path} is not a TOML file", cause=str(error)) from None
    default = assumed()
    given = data.pop("efficiency", {})
    start_s = data.pop("start_s", default.start_s)
    source = data.pop("source", str(path))
    device = data.pop("device", "")
    if data or not isinstance(given, dict):
        raise _refusal(path, f"unknown key {next(iter(data), 'efficiency')!r}")
    if unknown := [name for name in given if name not in FAMILIES]:
        raise _refusal(path, f"unknown family {unknown[0]!r}; there are {', '.join(FAMILIES)}")
    for name, value in {**given, "start_s": start_s}.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise _refusal(path, f"{name} cannot be {value!r}")
    try:
        return Factors({**default.efficiency, **given}, float(start_s), str(source), str(device))
    except DataError as error:
        raise _refusal(path, error.message) from None


def _refusal(path: Any, cause: str) -> DataError:
    return DataError(
        f"{path} is not a file of factors",
        cause=cause,
        hint="autosplit device fit profile.json -o factors.toml writes one",
    )
