"""Readers of what can be planned: own profiles and the files of other tools, told by content."""

from __future__ import annotations

import os

from autosplit.errors import DataError
from autosplit.readers import dnn_partitioning, pipedream, profile
from autosplit.readers.base import READERS
from autosplit.readers.workload import Workload, WorkloadPlan, WorkloadStage, plan_workload
from autosplit.serialize import parse_json, read_text
from autosplit.types import Profile

__all__ = [
    "READERS",
    "Workload",
    "WorkloadPlan",
    "WorkloadStage",
    "dnn_partitioning",
    "pipedream",
    "plan_workload",
    "profile",
    "read",
]


def read(path: str | os.PathLike[str]) -> Profile | Workload:
    """Read a file of any known format, told by its content.

    Raises
    ------
    DataError
        If the format is unknown or the content is at fault.
    """
    text = read_text(path)
    for name in READERS:
        if READERS[name].recognises(text):
            return READERS[name].read(text, os.fspath(path))
    if text.lstrip().startswith("{"):
        parse_json(text, os.fspath(path))
    raise DataError(
        f"{path} is of no format that can be planned",
        cause="its content is like none of: " + ", ".join(READERS.names()),
        hint="make a profile with autosplit profile MODEL",
    )
