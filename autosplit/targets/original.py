"""The files of an export whose stages run modules of the original model as they are."""

from __future__ import annotations

import json
from collections.abc import Iterator

from autosplit.errors import AutosplitError
from autosplit.types import Artifact, ModelCode

FOLDER = "model_source"
"""Where the model's own files stand in an export."""

_TAKEN = {"checkpoint", "data", "infer", "pipeline", "stages", "train"}


def original_files(code: ModelCode) -> Iterator[Artifact]:
    """Yield ``stages/original.py`` and the model's own files.

    Raises
    ------
    AutosplitError
        If a module of the model's folder has the name of a module of the export.
    """
    for path, text in code.files:
        top = path.partition("/")[0].removesuffix(".py")
        if top in _TAKEN:
            raise AutosplitError(
                f"the model needs its own module {top!r}",
                cause=f"{path} would stand beside the module {top} of the export",
                hint="rename it, or export with --style source",
            )
        yield Artifact(f"{FOLDER}/{path}", text)
    yield Artifact("stages/original.py", _module(code))


def _module(code: ModelCode) -> str:
    if code.source:
        source = f"{FOLDER}/{code.source}" if code.files else code.source
        maker, arguments = "from_source", [source, code.name]
    else:
        version = code.needs[0].rpartition("=")[2]
        maker, arguments = "from_config", [FOLDER, code.name, version]
    built = f"{maker}({', '.join(map(_quote, arguments))})"
    cast = "" if code.dtype is None else f", dtype={_quote(code.dtype)}"
    return (
        '"""The original model, built without memory: stages take modules out of it."""\n\n'
        f"from pipeline.original import Original, {maker}\n\n"
        f"original = Original({built}{cast})\n"
    )


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def what_it_needs(code: ModelCode | None) -> str:
    """Return what the export's README says of the packages that it needs."""
    if code is None:
        return "torch and safetensors, and nothing else."
    if code.needs:
        needs = f"torch, safetensors and `{', '.join(code.needs)}`"
    else:
        needs = f"torch, safetensors and what `{FOLDER}/{code.source}` imports"
    return f"""{needs}.
Modules of the model run as they are: `stages/original.py` builds it without memory and takes them
out of it."""
