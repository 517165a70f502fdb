"""What the tests of code generation share: checks of emitted text."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from autosplit.codegen import StageSource
from tests.commands import RUFF


@pytest.fixture
def check_style(tmp_path: Path) -> Callable[[Iterable[StageSource]], None]:
    """Return a check that a formatter and linters have nothing to say about stages."""

    def check(sources: Iterable[StageSource]) -> None:
        for source in sources:
            (tmp_path / f"stage_{source.index}.py").write_text(source.text, encoding="utf-8")
        for command in (["format", "--diff"], ["check", "--no-cache"]):
            done = subprocess.run(
                [*RUFF, *command, "--isolated", str(tmp_path)],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert done.returncode == 0, done.stdout

    return check
