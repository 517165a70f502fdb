"""No command destroys what it reads, forced or not."""

from pathlib import Path

import pytest

from autosplit.errors import ExitCode


@pytest.mark.parametrize(
    "command",
    [
        ("plan", "profile.json", "--stages", "2", "-o", "profile.json"),
        ("plan", "profile.json", "--stages", "2", "-o", "./again/../profile.json"),
        ("plan", "profile.json", "--cluster", "cluster.toml", "-o", "cluster.toml"),
        ("show", "profile.json", "--trace", "profile.json"),
        ("show", "plan.json", "--dot", "plan.json"),
        ("device", "fit", "profile.json", "-o", "profile.json"),
        ("profile", "model.py:build", "-o", "model.py"),
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_replaced(run, profile_file, plan_file, folder, command):
    (folder / "again").mkdir()
    (folder / "model.py").write_text("def build(): ...\n")
    (folder / "cluster.toml").write_text('[[device]]\nkind = "a100"\ncount = 2\n')
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    result = run(*command, "--force")
    assert result.exit_code == ExitCode.FAILURE
    assert "is another file of this command, and would be lost" in result.stderr
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_two_outputs_are_two_files(run, plan_file, profile_file):
    result = run("show", profile_file, "--trace", "out", "--dot", "out", "--force")
    assert result.exit_code == ExitCode.FAILURE
    assert not Path("out").exists()
