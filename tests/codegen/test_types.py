"""A type checker has nothing to say about emitted stages."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.codegen.chain import from_module, make
from tests.codegen.test_samples import GOLDEN
from tests.commands import MYPY

ORIGINAL = """\
from typing import Any

from torch import nn


def original(name: str) -> Any:
    return nn.Identity()
"""
"""Stands in for the file that gives stages the modules of the original model."""

SETTINGS = "[mypy]\n[mypy-transformers.*]\nfollow_imports = skip\nignore_missing_imports = True\n"


def check(texts: Iterable[tuple[str, str]], folder: Path) -> None:
    for name, text in texts:
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "mypy.ini").write_text(SETTINGS, encoding="utf-8")
    done = subprocess.run(
        [
            *MYPY,
            "--config-file=mypy.ini",
            "--cache-dir=cache",
            *sorted(p.name for p in folder.glob("*.py")),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stages_of_the_sample_models_pass(tmp_path: Path) -> None:
    texts = [(path.name, path.read_text("utf-8")) for path in GOLDEN.glob("*.py")]
    check([*texts, ("__init__.py", ""), ("original.py", ORIGINAL)], tmp_path)


@pytest.mark.slow
@pytest.mark.hf
@pytest.mark.timeout(600)
def test_stages_of_hugging_face_models_pass(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.codegen.test_huggingface import MODELS

    texts = []
    for name, (build, inputs, cuts) in MODELS.items():
        for source in make(from_module(build(), (), inputs()), 2, at=cuts).sources:
            texts.append((f"{name}_stage_{source.index}.py", source.text))
    check(texts, tmp_path)
