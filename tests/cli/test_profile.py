import json
from pathlib import Path

import pytest

from autosplit.errors import ExitCode

SAMPLES = Path(__file__).resolve().parents[2] / "sample_models"
MLP, GPT = (f"{SAMPLES / name}.py:build" for name in ("mlp", "gpt"))

pytestmark = pytest.mark.timeout(120)


def test_times_are_modelled_for_a_device_of_the_table(run, folder):
    result = run("profile", MLP, "--analytic", "h100 sxm")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "NVIDIA H100 SXM, modelled" in result.stdout
    assert "nothing was measured" in result.stdout
    data = json.loads(run("show", "profile.json", "--json").stdout)
    assert data["modelled"] is True
    assert run("plan", "profile.json", "--stages", "2").exit_code == ExitCode.OK


def test_one_profile_of_operations_serves_every_granularity(run, folder):
    for name, granularity in (("ops.json", "op"), ("layers.json", "layer")):
        told = run("profile", MLP, "--analytic", "t4", "-o", name, "--granularity", granularity)
        assert told.exit_code == ExitCode.OK, told.stderr
        assert ("--stages 2 --granularity op" in told.stderr) == (granularity == "op")

    def objective(name, granularity):
        result = run("plan", name, "--stages", "2", "--granularity", granularity, "--json")
        assert result.exit_code == ExitCode.OK, result.stderr
        plan = json.loads(result.stdout)
        placed = [layer for stage in plan["stages"] for layer in stage["layers"]]
        assert len(placed) == len(set(placed))
        assert plan["status"] == "optimal"
        return plan["objective_s"]

    by_op, by_layer, by_block = (objective("ops.json", each) for each in ("op", "layer", "block"))
    assert by_op <= by_layer * (1 + 1e-9)
    assert by_layer <= by_block * (1 + 1e-9)
    assert by_layer == pytest.approx(objective("layers.json", "layer"), rel=0.05)
    refused = run("plan", "layers.json", "--stages", "2", "--granularity", "op")
    assert refused.exit_code == ExitCode.USAGE
    assert "--granularity op" in refused.stderr


def test_several_sizes_are_profiled_and_planned(run, folder):
    result = run("profile", MLP, "--analytic", "t4", "--batch-size", "4,1,2")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "batch 1, 2, 4" in result.stdout
    for size in ("3", "4"):
        planned = run(
            "plan", "profile.json", "--stages", "2", "--batch-size", size, "--force", "--compare"
        )
        assert planned.exit_code == ExitCode.OK, planned.stderr
        assert f"mlp.py:build, batch size {size}" in planned.stdout
        assert run("show", "plan.json", "--trace", f"{size}.json").exit_code == ExitCode.OK
    refused = run("plan", "profile.json", "--stages", "2", "--batch-size", "5", "--force")
    assert refused.exit_code == ExitCode.USAGE
    assert "measured from 1 to 4" in refused.stderr
    search = ("--gpus", "2", "--global-batch", "8")
    searched = json.loads(run("plan", "profile.json", *search, "--force", "--json").stdout)
    tried = {each["microbatch_size"] for each in searched["candidates"]}
    assert len(tried) > 1
    assert tried <= {1, 2, 4}


def test_the_cache_of_generation_is_told(run, folder):
    result = run("profile", GPT, "--analytic", "l4", "--inference", "--seq-len", "8,32")
    assert result.exit_code == ExitCode.OK, result.stderr
    assert "seq 8, 32" in result.stdout
    assert "for each token of a row" in result.stdout
    data = json.loads(run("show", "profile.json", "--json").stdout)
    assert data["cache_bytes"] == 6 * 2 * 48 * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "0"], "'0' is not one or several whole numbers"),
        (["--batch-size", "0,abc"], "'0,abc' is not one or several whole numbers"),
        (["--batch-size", "1,x"], "'1,x' is not one or several whole numbers"),
        (["--precision", "0"], "0.0 is not in the range 0<x<=1"),
        (["--max-seconds", "-3"], "'-3' is not a time"),
        (["--repetitions", "0"], "0 is not in the range x>=1"),
        (["--calibrate", "--analytic", "t4"], "--calibrate goes with measured times"),
        (["--calibrate", "--on-meta"], "--on-meta builds it without weights"),
        (["--device", "cuda:99"], "there is no device 'cuda:99'"),
        (["--device", "toaster"], "unknown device 'toaster'"),
        (["--analytic", "h10"], "no device 'h10' in the table"),
        (["--factors", "f.toml"], "--factors goes with --analytic"),
        (["--threads", "99999999"], "cannot measure with 99999999 threads"),
        (["--autocast", "int8"], "'int8' is no floating-point dtype"),
        (["--dtype", "float33"], "'float33' is no floating-point dtype"),
        (["--seq-len", "4"], "--seq-len cannot vary"),
    ],
)
def test_what_cannot_be_meant_is_refused(run, folder, arguments, message):
    refused = run("profile", MLP, *arguments)
    assert refused.exit_code == ExitCode.USAGE
    assert message in refused.stderr
    assert not (folder / "profile.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.py:build", "--analytic", "h10"], "no device 'h10' in the table"),
        (["m.py:build", "--dtype", "float33"], "'float33' is no floating-point dtype"),
        (["m.py:build", "--device", "toaster"], "unknown device 'toaster'"),
        (["hf:nodir"], "there is no folder nodir"),
        (["m.py:build"], "profile.json exists"),
    ],
)
def test_arguments_are_checked_before_the_output(run, folder, arguments, message):
    (folder / "profile.json").write_text("kept")
    refused = run("profile", *arguments)
    assert f"error: {message}" in refused.stderr
    assert (folder / "profile.json").read_text() == "kept"


def test_sizes_stand_in_the_head_and_how_to_change_those_that_nobody_gave(run, folder):
    own = run("profile", GPT, "--analytic", "t4")
    assert "batch 4, seq 32 (that of the example inputs" in own.stdout
    given = run("profile", GPT, "--analytic", "t4", "--batch-size", "2", "--force")
    assert "batch 2, seq 32" in given.stdout
    assert "that of the example inputs" not in given.stdout
    assert json.loads(run("show", "profile.json", "--json").stdout)["sizes"] == {
        "batch": 2,
        "seq": 32,
    }


def test_without_a_compiler_nothing_is_compiled(run, folder, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    refused = run("profile", MLP, "--compile", "--device", "cpu")
    assert refused.exit_code == ExitCode.USAGE
    assert "there is no C++ compiler no-such-compiler" in refused.stderr
    assert "profile without --compile" in refused.stderr
