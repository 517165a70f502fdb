import json

import pytest

from autosplit import workflow
from autosplit.cost import OPTIMIZER_COPIES
from autosplit.errors import ExitCode
from autosplit.schedules import SCHEDULES
from autosplit.solvers import SOLVERS
from autosplit.types import Plan, PlanRequest
from tests import examples


@pytest.fixture
def asked(monkeypatch):
    """Answer every request with the example plan, and keep what was asked."""
    calls = []

    def plan(profile, request, *, cross_check=False):
        calls.append((str(profile), request, cross_check))
        return examples.plan()

    monkeypatch.setattr(workflow, "plan", plan)
    return calls


def test_defaults_make_a_training_pipeline(run, asked, profile_file):
    assert run("plan", profile_file, "--stages", "2").exit_code == ExitCode.OK
    expected = PlanRequest(stages=2, microbatches=8, schedule="1f1b", optimizer="adam")
    assert asked == [("profile.json", expected, False)]


def test_every_option_reaches_the_planner(run, asked, profile_file):
    result = run(
        *("plan", profile_file, "--gpus", "4", "--microbatches", "16", "--schedule", "gpipe"),
        *("--memory", "16GiB", "--bandwidth", "10GB/s", "--latency", "5us", "--overlap"),
        *("--optimizer", "sgd", "--objective", "bottleneck", "--pin", "head=3", "--pin", "h.0=0"),
        *("--time-limit", "2min", "--gap", "0.01", "--cross-check"),
    )
    assert result.exit_code == ExitCode.OK, result.output
    expected = PlanRequest(
        stages=4,
        microbatches=16,
        schedule="gpipe",
        memory_bytes=16 * 2**30,
        link_bytes_per_s=1e10,
        latency_s=5e-6,
        overlap=True,
        optimizer="sgd",
        objective="bottleneck",
        pins=(("head", 3), ("h.0", 0)),
        time_limit_s=120.0,
        gap=0.01,
    )
    assert asked == [("profile.json", expected, True)]


def test_the_plan_is_written_shown_and_followed_by_the_next_command(
    run, asked, profile_file, folder
):
    result = run("plan", profile_file, "--stages", "2")
    assert workflow.read(folder / "plan.json") == examples.plan()
    assert "proven optimal" in result.stdout
    assert "▶ 0" in result.stdout
    assert result.stderr == ("Wrote plan.json.\nNext: autosplit export plan.json -o pipeline\n")


def test_json_is_one_document_with_the_promised_keys(run, asked, profile_file, folder):
    result = run("plan", profile_file, "--stages", "2", "--json")
    data = json.loads(result.stdout)
    assert data["schema"] == "autosplit.report.plan"
    promised = {"status", "bottleneck_s", "bound_s", "gap", "solver", "solver_s", "step_s"}
    assert promised <= data.keys()
    for stage in data["stages"]:
        assert {"layers", "device", "forward_s", "backward_s", "memory_bytes"} <= stage.keys()
    assert result.stderr == ""
    assert not (folder / "plan.json").exists()


def test_json_and_output_do_both(run, asked, profile_file, folder):
    run("plan", profile_file, "--stages", "2", "--json", "-o", "mine.json")
    assert isinstance(workflow.read(folder / "mine.json"), Plan)


def test_a_file_that_exists_is_refused_before_work(run, asked, profile_file, folder):
    (folder / "plan.json").write_text("mine")
    result = run("plan", profile_file, "--stages", "2")
    assert result.exit_code == ExitCode.FAILURE
    assert "plan.json exists" in result.stderr
    assert "--force" in result.stderr
    assert asked == []
    assert (folder / "plan.json").read_text() == "mine"
    assert run("plan", profile_file, "--stages", "2", "--force").exit_code == ExitCode.OK


def test_a_plan_without_proof_ends_well_with_its_gap(run, monkeypatch, profile_file):
    found = examples.plan(status="feasible", gap=0.031, bound_s=0.2355)
    monkeypatch.setattr(workflow, "plan", lambda *args, **kwargs: found)
    result = run("plan", profile_file, "--stages", "2")
    assert result.exit_code == ExitCode.OK
    assert "3.1 %" in result.stdout
    assert result.stderr.startswith("warning: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Missing option '--stages'"),
        (["--stages", "0"], "0 is not in the range x>=1"),
        (["--stages", "2", "--memory", "16"], None),
        (["--stages", "2", "--memory", "lots"], "'lots' is not a size; write it like 16GiB"),
        (["--stages", "2", "--bandwidth", "0GB/s"], "nothing could ever be sent"),
        (["--stages", "2", "--latency", "5miles"], "'5miles' is not a time"),
        (["--stages", "2", "--schedule", "1fb1"], "Did you mean '1f1b'?"),
        (["--stages", "2", "--solver", "none"], "'none' is not one of auto"),
        (["--stages", "2", "--pin", "head"], "'head' is not LAYER=STAGE"),
        (["--stages", "2", "--pin", "head=-1"], "'head=-1' is not LAYER=STAGE"),
        (["--stages", "2", "--gap", "2"], "2.0 is not in the range 0<=x<=1"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(run, asked, profile_file, arguments, words):
    result = run("plan", profile_file, *arguments)
    if words is None:
        assert result.exit_code == ExitCode.OK
    else:
        assert result.exit_code == ExitCode.USAGE
        assert words in result.stderr
        assert asked == []


def test_every_registered_name_can_be_chosen(run, asked, profile_file):
    for option, names in [
        ("--schedule", SCHEDULES),
        ("--solver", SOLVERS),
        ("--optimizer", OPTIMIZER_COPIES),
    ]:
        for name in names:
            result = run("plan", profile_file, "--stages", "2", option, name, "--json")
            assert result.exit_code == ExitCode.OK, result.output


def test_a_profile_that_is_missing_or_foreign_is_told(run, folder):
    (folder / "foreign.json").write_text("{}")
    assert "none.json does not exist" in run("plan", "none.json", "--stages", "2").stderr
    foreign = run("plan", "foreign.json", "--stages", "2")
    assert foreign.exit_code == ExitCode.FAILURE
    assert "foreign.json" in foreign.stderr
    assert not (folder / "plan.json").exists()
