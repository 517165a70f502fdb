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


@dataclass(frozen=True, slots=True)
class ModelCode:
    """How to build a model where its files have been copied into a folder.

    Parameters
    ----------
    source
        File in the folder or importable module that ``name`` belongs to; "" for a Hugging Face
        model, which is built from the folder's ``config.json``.
    name
        Function that builds the model, or the class of transformers that does.
    files
        ``(path in the folder, text)``.
    needs
        Packages that must be installed, as for pip.
    dtype
        dtype that the model is cast to; None leaves it as built.
    """

    source: str
    name: str
    files: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    dtype: str | None = None


@dataclass(frozen=True, slots=True)
class ExportedStage:
    """One stage as it stands in an export folder.

    Parameters
    ----------
    index
        Number of the stage.
    lines
        Lines of its source.
    weights_bytes
        Size of its weights and buffers on disk.
    take, give
        Values that it is called with, and that it returns.
    rewrites
        In how many places its source differs from the recorded operations.
    """

    index: int
    lines: int
    weights_bytes: int
    take: tuple[str, ...]
    give: tuple[str, ...]
    rewrites: int
