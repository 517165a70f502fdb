import json
import re

import pytest

from autosplit import serialize
from autosplit.errors import ExitCode
from tests import examples


def test_a_profile_is_shown_as_tree_and_table(run, profile_file):
    result = run("show", profile_file)
    assert result.exit_code == ExitCode.OK
    assert "h.0 … h.2  3 alike" in result.stdout
    assert "layer head alone is 50 % of the total: no plan beats 2.01×" in result.stdout
    assert result.stderr == "Next: autosplit plan profile.json --stages 2\n"


def test_top_limits_the_table(run, profile_file):
    shown = run("show", profile_file, "--top", "2").stdout
    table = shown.split("Most time, of 8 layers, 4 different")[1]
    assert "head" in table
    assert re.search(r"h.0.mlp +× 3 +33 %", table)
    assert "h.0.attn" not in table


def test_a_plan_is_shown_with_its_bottleneck(run, plan_file):
    result = run("show", plan_file)
    assert result.exit_code == ExitCode.OK
    assert "◀ bottleneck" in result.stdout
    assert result.stderr == "Next: autosplit export plan.json -o pipeline\n"


@pytest.fixture
def export(folder):
    """The parts of an export that show looks at."""
    place = folder / "pipeline"
    serialize.dump(examples.plan(), place / "plan.json")
    routing = {"stages": [{"take": ["ids"], "give": ["x", "mask"]}, {"take": ["x"], "give": ["y"]}]}
    (place / "routing.json").write_text(json.dumps(routing))
    report = {"stages": [{"rewrites": [{}]}, {"rewrites": []}]}
    (place / "report.json").write_text(json.dumps(report))
    for name in ("stages", "weights"):
        (place / name).mkdir()
    for index in range(2):
        (place / "stages" / f"stage_{index}.py").write_text("pass\n" * (20 + index))
        (place / "weights" / f"stage_{index}.safetensors").write_bytes(b"0" * 2048)
    return place


def test_an_export_is_shown_by_its_plan_and_its_files(run, export):
    result = run("show", "pipeline")
    assert "◀ bottleneck" in result.stdout
    assert re.search(r"0 +20 +2.00 KiB +1 +ids +x, mask", result.stdout)
    assert result.stderr == "Next: autosplit verify pipeline\n"
    data = json.loads(run("show", "pipeline", "--json").stdout)
    assert data["schema"] == "autosplit.report.export"
    assert [stage["lines"] for stage in data["files"]] == [20, 21]


def test_an_export_that_is_not_whole_is_told(run, export):
    (export / "routing.json").write_text('{"stages": [{}]}')
    assert run("show", "pipeline").stderr.startswith("error: pipeline is not a whole export\n")
    (export / "report.json").unlink()
    assert "report.json does not exist" in run("show", "pipeline").stderr


@pytest.mark.parametrize("kind", ["profile", "plan"])
def test_json_is_for_programs(run, request, kind):
    data = json.loads(run("show", request.getfixturevalue(f"{kind}_file"), "--json").stdout)
    assert (data["schema"], data["version"]) == (f"autosplit.report.{kind}", [1, 0])


def test_what_is_neither_is_told(run, folder):
    (folder / "empty").mkdir()
    (folder / "text").write_text("hello")
    assert run("show", "empty").stderr.startswith("error: empty is not an export\n")
    assert run("show", "text").stderr.startswith("error: text is not JSON\n")
    assert run("show", "none").stderr == "error: none does not exist\n"


def test_a_step_is_written_as_a_trace(run, profile_file, folder):
    assert run("plan", profile_file, "--stages", "2").exit_code == 0
    shown = run("show", "plan.json", "--trace", "step.json")
    assert shown.exit_code == 0
    events = json.loads((folder / "step.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {0, 1}
    again = run("show", "plan.json", "--trace", "step.json")
    assert again.exit_code == 1
    assert "--force" in again.stderr
    refused = run("show", profile_file, "--trace", "other.json")
    assert refused.exit_code == 2
    assert not (folder / "other.json").exists()
