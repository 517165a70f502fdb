"""From a model file to a verified pipeline and back to the shell, as a user would type it."""

import json
import re
from pathlib import Path

import pytest

from autosplit.errors import ExitCode

MODEL = """
import torch
from torch import nn


def build():
    torch.manual_seed(0)
    widths = (8, 32, 16, 4)
    pairs = zip(widths, widths[1:])
    return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU())))


def broken():
    return nn.Bilinear(2, 2, 2)


def example_inputs(batch_size):
    return (torch.randn(batch_size, 8),)


def loss(output, target):
    return nn.functional.mse_loss(output, target)


def batches(batch_size):
    while True:
        yield example_inputs(batch_size), (torch.zeros(batch_size, 4),)


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x + 1
        return x
"""

QUICK = ("--repetitions", "2")


@pytest.fixture
def model(folder):
    (folder / "model.py").write_text(MODEL)
    return "model.py:build"


@pytest.fixture
def walk(run, model):
    """Everything up to an export."""
    for command in (
        ("profile", model, "--batch-size", "6", *QUICK),
        ("plan", "profile.json", "--stages", "2", "--microbatches", "4"),
        ("export", "plan.json", "-o", "pipeline"),
    ):
        result = run(*command)
        assert result.exit_code == ExitCode.OK, result.output


@pytest.mark.timeout(120)
def test_each_command_names_the_next_and_the_last_one_verifies(run, model):
    command = f"profile {model} --batch-size 6 {' '.join(QUICK)}"
    typed = []
    while command:
        typed.append(command.split()[0])
        result = run(*command.split())
        assert result.exit_code == ExitCode.OK, result.output
        following = re.search(r"^Next: autosplit (.*)$", result.stderr, re.MULTILINE)
        command = following[1] if following else ""
    assert typed == ["profile", "plan", "export", "verify", "verify"]
    assert result.stderr == ("The pipeline equals the model.\nNext: pipeline/launch.sh train.py\n")


@pytest.mark.timeout(120)
def test_an_export_is_kept_unless_forced(run, walk, folder):
    mine = folder / "pipeline" / "data.py"
    mine.write_text("mine")
    result = run("export", "plan.json", "-o", "pipeline")
    assert result.exit_code == ExitCode.FAILURE
    assert "pipeline exists" in result.stderr
    assert mine.read_text() == "mine"
    result = run("export", "plan.json", "-o", "pipeline", "--force")
    assert result.exit_code == ExitCode.OK
    assert mine.read_text() == "mine"
    assert "Kept what you had changed or added: data.py; what" in " ".join(result.stderr.split())
    # An edited data.py makes an export no less current.
    assert run("export", "plan.json", "-o", "pipeline", "--check").exit_code == ExitCode.OK
    mine.with_name("data.py.new").replace(mine)


@pytest.mark.timeout(120)
def test_check_tells_a_current_export_from_a_stale_one(run, walk, folder):
    assert run("export", "plan.json", "-o", "pipeline", "--check").exit_code == ExitCode.OK
    stage = folder / "pipeline" / "stages" / "stage_1.py"
    stage.write_text(stage.read_text() + "# mine\n")
    result = run("export", "plan.json", "-o", "pipeline", "--check")
    assert result.exit_code == ExitCode.FAILURE
    assert "different: stages/stage_1.py" in result.stderr
    assert stage.read_text().endswith("# mine\n")


@pytest.mark.timeout(120)
def test_a_dry_run_prints_the_files_and_writes_none(run, walk, folder):
    result = run("export", "plan.json", "-o", "elsewhere", "--dry-run")
    assert result.exit_code == ExitCode.OK
    assert "# ---- stages/stage_0.py" in result.stdout
    assert "class Stage0(" in result.stdout
    assert not (folder / "elsewhere").exists()


@pytest.mark.timeout(120)
def test_rewrites_are_reported_and_can_be_left_out(run, walk, folder):
    def reported():
        stages = json.loads((folder / "pipeline" / "report.json").read_text())["stages"]
        assert all(stage["may_be_cast"] and not stage["dtype_fixed_at"] for stage in stages)
        return {rewrite["kind"] for stage in stages for rewrite in stage["rewrites"]}

    again = ("export", "plan.json", "-o", "pipeline")
    assert reported() == {"loop"}
    off = ("--no-rewrite", "fold", "--no-rewrite", "loop")
    assert run(*again, "--force", *off).exit_code == ExitCode.OK
    assert reported() == set()
    assert run(*again, "--check", *off).exit_code == ExitCode.OK
    assert run(*again, "--check").exit_code == ExitCode.FAILURE
    assert run("verify", "pipeline").exit_code == ExitCode.OK
    result = run(*again, "--no-rewrite", "folds")
    assert result.exit_code == ExitCode.USAGE
    assert "Did you mean 'fold'?" in result.stderr


@pytest.mark.timeout(120)
def test_a_plan_for_another_model_is_refused(run, walk, folder):
    (folder / "model.py").write_text(MODEL.replace("nn.ReLU()", "nn.GELU()"))
    result = run("export", "plan.json", "-o", "again")
    assert result.exit_code == ExitCode.FAILURE
    assert "error: the plan is stale\n" in result.stderr
    assert "is not the model it was made for any more" in result.stderr
    assert not (folder / "again").exists()


@pytest.mark.timeout(120)
def test_a_plan_for_another_profile_is_refused(run, walk, model, folder):
    assert run("profile", model, "--batch-size", "7", *QUICK, "--force").exit_code == ExitCode.OK
    result = run("export", "plan.json", "-o", "again")
    assert result.exit_code == ExitCode.FAILURE
    assert "has changed since the plan was made" in result.stderr
    (folder / "profile.json").unlink()
    assert run("export", "plan.json", "-o", "again").exit_code == ExitCode.OK


@pytest.mark.timeout(120)
def test_an_export_that_differs_fails_verification(run, walk, folder):
    stage = folder / "pipeline" / "stages" / "stage_0.py"
    wrong = re.sub(r"\breturn (.+)", r"return 2 * (\1)", stage.read_text())
    stage.write_text(wrong)
    result = run("verify", "pipeline", "--json")
    assert result.exit_code == ExitCode.VERIFICATION
    assert json.loads(result.stdout)["passed"] is False
    assert "differ from the original model" in result.stderr


@pytest.mark.timeout(120)
def test_verify_speaks_json(run, walk):
    result = run("verify", "pipeline", "--json", "-q")
    data = json.loads(result.stdout)
    assert data["passed"] is True
    kinds = {each["kind"] for check in data["checks"] for each in check["comparisons"]}
    assert {"outputs", "loss", "gradients", "buffers"} <= kinds
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ("none.py:build", ExitCode.USAGE, "none.py"),
        ("model.py:nothing", ExitCode.USAGE, "nothing"),
        ("model.py", ExitCode.USAGE, "model.py"),
        ("model.py:Branching", ExitCode.TRACE, "model.py:"),
    ],
)
@pytest.mark.timeout(120)
def test_a_model_that_cannot_be_used_is_told_and_nothing_written(
    run, model, folder, spec, code, words
):
    result = run("profile", spec, *QUICK)
    assert result.exit_code == code, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert not (folder / "profile.json").exists()


@pytest.mark.timeout(120)
def test_an_existing_profile_is_refused_before_the_model_is_built(run, model, folder):
    (folder / "profile.json").write_text("mine")
    (folder / "model.py").write_text("raise SystemExit('built')")
    result = run("profile", model)
    assert result.exit_code == ExitCode.FAILURE
    assert "profile.json exists" in result.stderr
    assert Path("profile.json").read_text() == "mine"


@pytest.mark.timeout(120)
def test_more_stages_than_layers_and_too_little_memory_are_told(run, walk):
    many = run("plan", "profile.json", "--stages", "99", "-o", "many.json")
    assert many.exit_code in (ExitCode.USAGE, ExitCode.INFEASIBLE)
    assert "99" in many.stderr
    small = run("plan", "profile.json", "--stages", "2", "--memory", "1KiB", "-o", "small.json")
    assert small.exit_code == ExitCode.INFEASIBLE
    assert re.search(r"alone needs .*(KiB|B)", small.stderr)


@pytest.mark.timeout(120)
def test_profile_speaks_json(run, model):
    data = json.loads(run("profile", model, *QUICK, "--json", "-q").stdout)
    assert data["schema"] == "autosplit.report.profile"
    assert len(data["layers"]) >= 3
    assert data["training"] is True
