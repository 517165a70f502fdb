import json

import pytest

from autosplit.errors import ExitCode

WORKLOAD = {"maxFPGAs": 1, "maxCPUs": 0, "maxSizePerFPGA": 1, "nodes": [], "edges": []}


@pytest.fixture
def files(folder, profile_file, plan_file):
    """One file or folder of each kind."""
    (folder / "model.py").write_text("def build(): ...\n")
    (folder / "work.json").write_text(json.dumps(WORKLOAD))
    (folder / "exported").mkdir()
    (folder / "exported" / "plan.json").write_text((folder / plan_file).read_text())
    (folder / "photos").mkdir()
    return folder


@pytest.mark.parametrize(
    ("command", "message", "hint"),
    [
        ("plan plan.json", "plan.json is a plan, not a profile or a workload", "export plan.json"),
        ("plan model.py", "model.py is Python code, not a profile", "profile model.py:NAME"),
        ("plan exported", "exported is an export, not a profile", "verify exported"),
        ("plan photos", "photos is a folder, not a profile", None),
        ("plan profile.json --improve profile.json", "is a profile, not a plan", "autosplit plan"),
        ("plan profile.json --profile-for a=plan.json", "a plan, not a profile", "export"),
        ("export profile.json", "profile.json is a profile, not a plan", "plan profile.json"),
        ("export model.py", "model.py is Python code, not a plan", "profile model.py:NAME"),
        ("export exported", "exported is an export, not a plan", "verify exported"),
        ("export work.json", "work.json is a workload, not a plan", "plan work.json"),
        ("verify plan.json", "plan.json is a plan, not an export", "export plan.json"),
        ("verify profile.json", "profile.json is a profile, not an export", "plan profile.json"),
        ("verify model.py", "model.py is Python code, not an export", "profile model.py:NAME"),
        ("show model.py", "not a profile, a plan or an export", "profile model.py:NAME"),
        ("show work.json", "work.json is a workload, not a profile", "plan work.json"),
        ("device fit plan.json -o f", "plan.json is a plan, not a profile", "export plan.json"),
        ("checkpoint merge plan.json -o m", "plan.json is a plan, not an export", "export"),
    ],
)
def test_a_file_of_another_kind_is_named_with_its_command(run, files, command, message, hint):
    result = run(*command.split())
    assert result.exit_code == ExitCode.USAGE, result.stderr
    assert message in result.stderr
    assert hint is None or f"hint:  autosplit {hint.removeprefix('autosplit ')}" in result.stderr


def test_json_of_no_kind_is_told(run, folder):
    (folder / "other.json").write_text('{"schema": "autosplit.routing"}')
    shown = run("show", "other.json")
    assert shown.stderr.startswith("error: other.json is neither a profile nor a plan\n")
