"""What was kept survives any death of the process, and is not mixed with other runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autosplit.errors import DataError
from autosplit.journal import Journal


@dataclass(frozen=True)
class Reading:
    name: str
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class Remark:
    text: str


READINGS = [
    Reading("first", (0.1, 1e-300)),
    Reading("zweite Schicht äöü\n", ()),
    Reading("", (3.0,)),
]


def write(path: Path) -> None:
    journal = Journal(path, "key")
    for reading in READINGS:
        journal.append(reading)


def test_another_run_reads_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "results"
    write(path)
    again = Journal(path, "key")
    assert again.records(Reading) == READINGS
    again.append(Remark("later"))
    assert Journal(path, "key").records(Reading) == READINGS
    assert Journal(path, "key").records(Remark) == [Remark("later")]


def test_parts_of_a_run_share_a_file_and_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "results"
    journal = Journal(path, "key")
    one, two = journal.part("one"), journal.part("two")
    one.append(READINGS[0])
    journal.append(Remark("of all"))
    two.append(READINGS[1])
    one.append(READINGS[2])
    again = Journal(path, "key")
    assert again.part("one").records(Reading) == [READINGS[0], READINGS[2]]
    assert again.part("two").records(Reading) == two.records(Reading) == [READINGS[1]]
    assert again.records(Reading) == []
    assert again.records(Remark) == [Remark("of all")]
    assert (len(again), len(again.part("one")), len(again.part("other"))) == (1, 2, 0)
    assert path.read_text().count("\n") == 1 + 4


def test_nothing_is_written_before_there_is_something(tmp_path: Path) -> None:
    Journal(tmp_path / "results", "key")
    Journal().append(Remark("in memory"))
    assert not list(tmp_path.iterdir())


@given(kept=st.floats(0, 1))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_file_cut_anywhere_gives_its_whole_records_and_goes_on(
    tmp_path: Path, kept: float
) -> None:
    path = tmp_path / "results"
    path.unlink(missing_ok=True)
    write(path)
    content = path.read_bytes()
    path.write_bytes(content[: round(kept * len(content))])
    journal = Journal(path, "key")
    found = journal.records(Reading)
    assert found == READINGS[: len(found)]
    for reading in READINGS[len(found) :]:
        journal.append(reading)
    assert path.read_bytes() == content


def test_results_of_another_run_are_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "results"
    write(path)
    before = path.read_bytes()
    with pytest.raises(DataError, match="results of another run"):
        Journal(path, "other key")
    assert path.read_bytes() == before
    forced = Journal(path, "other key", force=True)
    assert len(forced) == 0
    forced.append(READINGS[0])
    assert Journal(path, "other key").records(Reading) == READINGS[:1]


@pytest.mark.parametrize("content", [b"hello\n", b"[1]\n", b"\xff\xfe\n", b'{"schema": "x"}\n'])
def test_foreign_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "results"
    path.write_bytes(content)
    with pytest.raises(DataError, match="another run"):
        Journal(path, "key")
    assert path.read_bytes() == content


def test_a_record_that_does_not_fit_names_its_place(tmp_path: Path) -> None:
    path = tmp_path / "results"
    write(path)
    path.write_bytes(path.read_bytes() + b'{"Reading": {"name": 3, "seconds": []}}\n')
    with pytest.raises(DataError, match=r"results: Reading\.name"):
        Journal(path, "key").records(Reading)
