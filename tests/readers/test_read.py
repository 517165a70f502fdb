"""The format of a file is told by its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from autosplit.errors import DataError
from autosplit.readers import READERS, read
from autosplit.serialize import dumps
from tests.builders import profile


def test_own_profile_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "any.name"
    original = profile([1.0, 2.0])
    path.write_text(dumps(original))
    assert read(path) == original


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no format that can be planned"),
        ("hello", "no format that can be planned"),
        ("{}", "no format that can be planned"),
        ('{"nodes": [', "is not JSON"),
        ('{"schema": "autosplit.plan"}', "no format that can be planned"),
    ],
)
def test_foreign_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        read(path)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "none")


def test_no_text_is_of_two_formats() -> None:
    samples = [
        '{"nodes": [], "maxFPGAs": 1}',
        "node1 -- Input -- x=1",
        '{"a": "autosplit.profile"}',
    ]
    for text in samples:
        assert sum(READERS[name].recognises(text) for name in READERS) == 1
