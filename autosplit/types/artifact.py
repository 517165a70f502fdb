"""A file of an export, as text."""

from __future__ import annotations

from dataclasses import dataclass

from autosplit.checks import require


@dataclass(frozen=True, slots=True)
class Artifact:
    """A text file to write: path inside the export folder, with forward slashes."""

    path: str
    text: str
    executable: bool = False

    def __post_init__(self) -> None:
        parts = self.path.split("/")
        require(self, ".." not in parts and parts[0] != "", f"{self.path!r} leaves the folder")
