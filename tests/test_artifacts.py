"""Export folders appear whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autosplit import artifacts
from autosplit.artifacts import write_folder
from autosplit.errors import AutosplitError
from autosplit.types import Artifact

NEW = (
    Artifact("routing.json", "new\n"),
    Artifact("stages/stage_0.py", "x = 1\n"),
    Artifact("launch.sh", "#!/bin/sh\n", executable=True),
)
OLD = (Artifact("routing.json", "old\n"), Artifact("mine.txt", "kept?\n"))


def tree(folder: Path) -> dict[str, str]:
    """Return the files below a folder and their text."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "export.json"
    }


def test_files_are_written(tmp_path: Path):
    write_folder(tmp_path / "a" / "out", NEW, lambda folder: (folder / "w").write_text("1"))
    out = tmp_path / "a" / "out"
    assert tree(out) == {
        "routing.json": "new\n",
        "stages/stage_0.py": "x = 1\n",
        "launch.sh": "#!/bin/sh\n",
        "w": "1",
    }
    assert os.access(out / "launch.sh", os.X_OK)
    assert not os.access(out / "routing.json", os.X_OK)
    assert os.listdir(tmp_path / "a") == ["out"]
    mask = os.umask(0)
    os.umask(mask)
    assert out.stat().st_mode & 0o777 == 0o777 & ~mask


def test_an_existing_folder_is_kept_unless_forced(tmp_path: Path):
    write_folder(tmp_path / "out", OLD)
    with pytest.raises(AutosplitError, match="exists") as caught:
        write_folder(tmp_path / "out", NEW)
    assert "--force" in str(caught.value)
    assert tree(tmp_path / "out")["routing.json"] == "old\n"
    write_folder(tmp_path / "out", NEW, force=True)
    assert set(tree(tmp_path / "out")) == {artifact.path for artifact in NEW}
    assert os.listdir(tmp_path) == ["out"]


def test_what_people_changed_or_added_stays(tmp_path: Path):
    out = tmp_path / "out"
    data = Artifact("data.py", "written\n")
    write_folder(out, (*NEW, data), lambda folder: (folder / "weights").mkdir())
    assert artifacts.files_of_others(out) == {}
    (out / "data.py").write_text("edited\n")
    (out / "stages" / "stage_0.py").write_text("x = 2\n")
    (out / "stages" / "stage_1.py").write_text("mine\n")
    (out / "runs" / "step_1").mkdir(parents=True)
    (out / "runs" / "step_1" / "w").write_text("trained")
    (out / "runs" / "last").symlink_to("step_1")
    (out / "weights" / "w").write_text("replaced")
    more = Artifact("stages/stage_1.py", "new\n")
    for again in (1, 2):
        write_folder(out, (*NEW, Artifact("data.py", f"{again}\n"), more), force=True)
        assert tree(out) == {
            "data.py": "edited\n",
            "data.py.new": f"{again}\n",
            "launch.sh": "#!/bin/sh\n",
            "routing.json": "new\n",
            "runs/step_1/w": "trained",
            "stages/stage_0.py": "x = 1\n",
            "stages/stage_0.py.edited": "x = 2\n",
            "stages/stage_1.py": "new\n",
            "stages/stage_1.py.edited": "mine\n",
        }
    assert (out / "runs" / "last").readlink() == Path("step_1")
    assert artifacts.files_of_others(out)["data.py"] == "data.py"
    assert os.listdir(tmp_path) == ["out"]


def test_data_of_an_export_without_digests_stays(tmp_path: Path):
    write_folder(tmp_path / "out", (*OLD, Artifact("data.py", "edited?\n")))
    (tmp_path / "out" / "export.json").unlink()
    write_folder(tmp_path / "out", (*NEW, Artifact("data.py", "new\n")), force=True)
    assert tree(tmp_path / "out")["data.py"] == "edited?\n"
    assert tree(tmp_path / "out")["data.py.new"] == "new\n"


@pytest.mark.parametrize("exchange", [True, False])
def test_replacing_works_without_exchange_too(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(artifacts, "_exchange", lambda one, other: False)
    write_folder(tmp_path / "out", OLD)
    write_folder(tmp_path / "out", NEW, force=True)
    assert tree(tmp_path / "out")["routing.json"] == "new\n"
    assert os.listdir(tmp_path) == ["out"]


def test_force_replaces_nothing_but_exports(tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("years of work")
    with pytest.raises(AutosplitError, match="is not an export"):
        write_folder(tmp_path / "home", NEW, force=True)
    assert tree(tmp_path / "home") == {"thesis.txt": "years of work"}
    (tmp_path / "file").write_text("1")
    with pytest.raises(AutosplitError, match="is a file"):
        write_folder(tmp_path / "file", NEW, force=True)
    (tmp_path / "empty").mkdir()
    write_folder(tmp_path / "empty", NEW, force=True)
    assert (tmp_path / "empty" / "routing.json").is_file()


def test_a_link_is_followed(tmp_path: Path):
    write_folder(tmp_path / "real", OLD)
    (tmp_path / "link").symlink_to("real")
    write_folder(tmp_path / "link", NEW, force=True)
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real")["routing.json"] == "new\n"
    assert sorted(os.listdir(tmp_path)) == ["link", "real"]


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), OSError(28, "full")])
def test_a_failure_leaves_the_old_folder_and_nothing_else(tmp_path: Path, error):
    write_folder(tmp_path / "out", OLD)
    before = tree(tmp_path / "out")

    def fail(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise error

    expected = AutosplitError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        write_folder(tmp_path / "out", NEW, fail, force=True)
    assert tree(tmp_path / "out") == before
    assert os.listdir(tmp_path) == ["out"]


def test_a_disk_that_refuses_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("1")
    with pytest.raises(AutosplitError, match="cannot write") as caught:
        write_folder(tmp_path / "file" / "out", NEW)
    assert "File exists" in str(caught.value)


KILLED = """
import sys, time
from pathlib import Path
from autosplit import artifacts
from autosplit.types import Artifact

def fill(folder):
    (folder / "half").write_text("half")
    if sys.argv[2] == "fill":
        wait()

def wait():
    print("now", flush=True)
    time.sleep(60)

if sys.argv[2] == "sync":
    artifacts._sync_tree = lambda folder: wait()
artifacts.write_folder(sys.argv[1], [Artifact("routing.json", "new")], fill, force=True)
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("moment", ["fill", "sync"])
@pytest.mark.parametrize("old", [True, False])
def test_a_killed_writer_leaves_the_old_folder(tmp_path: Path, moment: str, old: bool):
    out = tmp_path / "out"
    if old:
        write_folder(out, OLD)
    command = [sys.executable, "-c", KILLED, str(out), moment]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGKILL)
    assert out.exists() == old
    if old:
        assert tree(out) == {artifact.path: artifact.text for artifact in OLD}
    write_folder(out, NEW, force=True)
    assert tree(out)["routing.json"] == "new\n"
    assert os.listdir(tmp_path) == ["out"], "what the killed writer left is gone"


@pytest.mark.timeout(60)
def test_replacing_is_one_step_for_a_reader(tmp_path: Path):
    """Somebody who looks all the time sees the old or the new folder, never none."""
    out = tmp_path / "out"
    write_folder(out, OLD)
    if not artifacts._exchange(_made(tmp_path / "a"), _made(tmp_path / "b")):
        pytest.skip("this file system cannot exchange folders")
    loop = (
        "from autosplit.artifacts import write_folder\n"
        "from autosplit.types import Artifact\n"
        f"for i in range(30): write_folder({str(out)!r}, "
        "[Artifact('routing.json', 'new')], force=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", loop]) as process:
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            assert (out / "routing.json").exists()
        process.kill()
    assert process.returncode == 0


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
