import csv
import json
import re
from dataclasses import replace

import pytest

from autosplit import serialize
from autosplit.errors import ExitCode
from autosplit.types import Timing
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
    assert run("show", profile_file, "--trace", "layers.json").exit_code == 0
    layers = json.loads((folder / "layers.json").read_text())["traceEvents"][1:]
    assert len(layers) == 16
    assert sum(event["dur"] for event in layers) == pytest.approx(54300)


def test_layers_and_stages_are_printed_as_csv(run, profile_file, plan_file):
    rows = list(csv.DictReader(run("show", profile_file, "--csv").stdout.splitlines()))
    assert [row["layer"] for row in rows] == list(examples.NAMES)
    assert float(rows[7]["forward_s"]) == 0.009
    stages = list(csv.DictReader(run("show", plan_file, "--csv").stdout.splitlines()))
    assert stages[1]["layers"] == "head"
    assert run("show", plan_file, "--csv", "--json").exit_code == ExitCode.USAGE


def test_the_graph_is_written_for_graphviz(run, profile_file, folder):
    assert run("plan", profile_file, "--stages", "2").exit_code == 0
    assert run("show", profile_file, "--dot", "model.dot").exit_code == 0
    text = (folder / "model.dot").read_text()
    assert '"h.0.attn" -> "h.0.mlp"' in text
    assert "cluster" not in text
    assert run("show", "plan.json", "--dot", "plan.dot").exit_code == 0
    text = (folder / "plan.dot").read_text()
    assert text.count("subgraph cluster_") == 2
    assert text.count("color=red") == 1
    assert run("show", "plan.json", "--dot", "plan.dot").exit_code == 1


def test_two_profiles_are_compared(run, profile_file, plan_file, folder):
    source = examples.profile()
    layers = tuple(replace(each, backward=Timing(0.0)) for each in source.layers)
    serialize.dump(replace(source, layers=layers), folder / "other.json")
    shown = run("show", profile_file, "other.json", "--depth", "1")
    assert shown.exit_code == ExitCode.OK
    assert re.search(r"all +54.3 ms +18.1 ms +0.33×", shown.stdout)
    data = json.loads(run("show", profile_file, "other.json", "--depth", "2", "--json").stdout)
    assert data["total"]["ratio"] == pytest.approx(1 / 3)
    assert [module["path"] for module in data["modules"]][:2] == ["embed", "h.0"]
    assert run("show", profile_file, plan_file).exit_code == ExitCode.USAGE
    assert run("show", profile_file, "other.json", "--csv").exit_code == ExitCode.USAGE
