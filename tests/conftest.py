"""What all tests share: a fixed seed, the versions in the header, golden files, free ports."""

from __future__ import annotations

import random
import socket
import sys
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

# How long an example takes depends on the machine; tests assert nothing about it.
hypothesis.settings.register_profile("here", deadline=None)
hypothesis.settings.load_profile("here")

ROOT = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that writes golden files anew instead of comparing with them."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write golden files from what the code emits now",
    )


def pytest_report_header() -> str:
    """Name the versions that numbers and emitted text depend on."""
    return "versions: " + ", ".join(f"{name} {version(name)}" for name in ("torch", "pulp"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Start every test from the same random numbers."""
    random.seed(0)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written anew."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """Folder of hard models beside the repository; the test is skipped where it is absent."""
    folder = ROOT.parent / "shared" / "cases"
    if not folder.is_dir():
        pytest.skip("no ../shared/cases beside this repository")
    return folder


@pytest.fixture
def free_port() -> int:
    """A TCP port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
