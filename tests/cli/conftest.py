from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from autosplit import serialize
from autosplit.cli.main import cli
from tests import examples


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder in which the command runs, at a width of 80."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def run(folder) -> Callable[..., Result]:
    """Run the command line with arguments; standard output and error are kept apart."""

    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments, prog_name="autosplit")

    return invoke


@pytest.fixture
def profile_file(folder):
    serialize.dump(examples.profile(), folder / "profile.json")
    return "profile.json"


@pytest.fixture
def plan_file(folder):
    serialize.dump(examples.plan(), folder / "plan.json")
    return "plan.json"
