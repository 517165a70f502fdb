"""The files that a model is built from, to be taken along where it shall be built elsewhere."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

from autosplit.errors import UsageError
from autosplit.modelspec.huggingface import auto_class
from autosplit.modelspec.python import split_spec
from autosplit.types import ModelCode, ModelRef


def model_code(ref: ModelRef) -> ModelCode:
    """Return the code behind a model that has been loaded in this process.

    A file is taken along with the modules of its folder that it has imported; a module is left
    where it is.

    Raises
    ------
    UsageError
        If a file cannot be read as text.
    """
    if ref.spec.startswith("hf:"):
        folder = ref.spec.removeprefix("hf:")
        config = ("config.json", _text(Path(folder) / "config.json"))
        needs = f"transformers=={importlib.metadata.version('transformers')}"
        return ModelCode("", auto_class(folder, ref.task), (config,), (needs,), ref.dtype)
    source, name = split_spec(ref.spec)
    if not source.endswith(".py"):
        return ModelCode(source, name, (), (source.partition(".")[0],), ref.dtype)
    path = Path(source).resolve()
    files = {path.name: _text(path)}
    for neighbour in _neighbours(path.parent):
        files[neighbour.relative_to(path.parent).as_posix()] = _text(neighbour)
    return ModelCode(path.name, name, tuple(sorted(files.items())), (), ref.dtype)


def _neighbours(folder: Path) -> set[Path]:
    """Return the files of imported modules whose names begin at ``folder``."""
    found = set()
    for name, module in list(sys.modules.items()):
        place = folder.joinpath(*name.split("."))
        expected = (place.with_name(f"{place.name}.py"), place / "__init__.py")
        file = getattr(module, "__file__", None)
        if file and Path(file) in expected and Path(file).is_file():
            found.add(Path(file))
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot take {path} along", cause=str(error)) from None
