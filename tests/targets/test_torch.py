"""The target "torch": which files an export has, and what stands in them."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
from pathlib import Path

import pytest

from autosplit import stages
from autosplit.codegen import StageSource
from autosplit.errors import AutosplitError
from autosplit.serialize import loads
from autosplit.targets import TARGETS
from autosplit.targets.templates.torch.pipeline import read_routing
from autosplit.types import ModelRef, Plan, PlanRequest, StageMemory, StagePlan
from tests.commands import RUFF
from tests.stages.symbolic import Step, program_of

PROGRAM = program_of(1, [Step("op", (0,), (0,)), Step("op", (1,), (0,))], [2])
SOURCES = (StageSource(0, "class Stage0: ...\n", ()), StageSource(1, "class Stage1: ...\n", ()))


def plan_for(spec: str = "hf:model", schedule: str = "1f1b") -> Plan:
    """Return a plan of two stages of one layer each."""
    return Plan(
        model=ModelRef(spec),
        fingerprint="0",
        profile_digest="0",
        request=PlanRequest(stages=2, microbatches=4, schedule=schedule),
        order=("first", "second"),
        stages=tuple(
            StagePlan((name,), k, None, 1.0, 1.0, 0.0, 1, StageMemory(), 0.0)
            for k, name in enumerate(("first", "second"))
        ),
        status="optimal",
        solver="dp",
        objective_s=1.0,
        bottleneck_s=1.0,
        bound_s=1.0,
        gap=0.0,
        solver_s=0.0,
        step_s=1.0,
        single_s=2.0,
        nodes=(("n0",), ("n1",)),
    )


def emit(plan: Plan) -> dict[str, str]:
    _, routing = stages.split(PROGRAM, plan.stage_of_node, 2)
    artifacts = TARGETS["torch"].emit(plan, PROGRAM, routing, SOURCES)
    assert len({artifact.path for artifact in artifacts}) == len(artifacts)
    return {artifact.path: artifact.text for artifact in artifacts}


def test_an_export_has_these_files():
    files = emit(plan_for())
    named = {path for path in files if not path.startswith("pipeline/")}
    assert named == {
        *("README.md", "launch.sh", "train.py", "infer.py", "checkpoint.py", "data.py"),
        *("routing.json", "plan.json", "report.json"),
        *("stages/__init__.py", "stages/stage_0.py", "stages/stage_1.py"),
    }
    assert "pipeline/runner.py" in files
    assert files["stages/stage_1.py"] == SOURCES[1].text


def test_the_same_plan_gives_the_same_text():
    assert emit(plan_for()) == emit(plan_for())


def test_code_is_python_and_speaks_of_no_template():
    for path, text in emit(plan_for()).items():
        if path.endswith(".py"):
            ast.parse(text)
        assert "${" not in text or path == "launch.sh"
        assert text.endswith("\n")


def test_nothing_in_an_export_imports_autosplit():
    for path, text in emit(plan_for()).items():
        if path.endswith(".py"):
            modules = [
                name
                for node in ast.walk(ast.parse(text))
                if isinstance(node, (ast.Import, ast.ImportFrom))
                for name in [getattr(node, "module", None), *(a.name for a in node.names)]
            ]
            assert not any(str(name).startswith("autosplit") for name in modules), path


def test_the_runtime_reads_the_routing_table(tmp_path: Path):
    files = emit(plan_for())
    (tmp_path / "routing.json").write_text(files["routing.json"])
    routing = read_routing(tmp_path / "routing.json")
    assert routing.cuts == (("n0",),)
    assert [shared.name for shared in routing.shared] == ["w"]
    assert routing.aliases == {"tied": "w"}
    assert routing.run.ranks == (0, 1)
    assert (routing.run.schedule, routing.run.microbatches) == ("1f1b", 4)
    assert routing.run.microbatch_size == 4
    assert loads(Plan, files["plan.json"]) == plan_for()
    assert json.loads(files["report.json"])["schema"] == "autosplit.report"


@pytest.mark.parametrize(("replicas", "sharding"), [(1, "replicate"), (3, "fsdp")])
def test_an_export_starts_the_replicas_of_its_plan(tmp_path: Path, replicas, sharding):
    request = PlanRequest(stages=2, microbatches=4, replicas=replicas, sharding="fsdp")
    files = emit(dataclasses.replace(plan_for(), request=request))
    (tmp_path / "routing.json").write_text(files["routing.json"])
    run = read_routing(tmp_path / "routing.json").run
    assert (run.replicas, run.sharding) == (replicas, sharding)
    assert f"export REPLICAS=${{REPLICAS:-{replicas}}}" in files["launch.sh"]
    assert f"in {2 * replicas} processes" in files["README.md"]


@pytest.mark.parametrize(
    ("text", "batches", "loss"),
    [
        ("def batches(n): ...\ndef loss(o): ...\n", "SOURCE.batches", "SOURCE.loss"),
        ("from other import batches\n", "SOURCE.batches", "own_loss"),
        ("batches = loss = None\n", "SOURCE.batches", "SOURCE.loss"),
        ("def loss(o): ...\n", "example_batches", "own_loss"),
        ("class C:\n    def batches(self): ...\n", "example_batches", "own_loss"),
    ],
)
def test_data_comes_from_the_model_file_where_it_has_them(tmp_path, text, batches, loss):
    path = tmp_path / 'od"d \N{GRINNING FACE}.py'
    path.write_text(text)
    made = emit(plan_for(f"{path}:build"))["data.py"]
    named = {n.value for n in ast.walk(ast.parse(made)) if isinstance(n, ast.Constant)}
    assert (str(path) in named) == (batches == "SOURCE.batches")
    called = [ast.unparse(n.func) for n in ast.walk(ast.parse(made)) if isinstance(n, ast.Call)]
    known = {"SOURCE.batches", "SOURCE.loss", "own_loss", "example_batches"}
    assert known & set(called) == {batches, loss}


def test_a_module_can_hold_the_model_too():
    made = emit(plan_for("sample_models.gpt:build"))["data.py"]
    assert 'SOURCE = load_source("sample_models.gpt")' in made


@pytest.mark.parametrize(
    "spec", ["hf:model", "gone.py:build", "no_such_module:build", "no_such.module:build", "sys:x"]
)
def test_data_is_made_up_where_there_is_none(spec):
    made = emit(plan_for(spec))["data.py"]
    assert "example_batches(ROUTING" in made


def test_other_schedules_and_ranks_are_refused():
    with pytest.raises(AutosplitError, match="schedule zbv cannot run 2 stages"):
        emit(plan_for(schedule="zbv"))
    plan = plan_for()
    swapped = tuple(dataclasses.replace(stage, rank=1 - stage.rank) for stage in plan.stages)
    with pytest.raises(AutosplitError, match="runs its stages on ranks 0, 1"):
        emit(dataclasses.replace(plan, stages=swapped))


def test_emitted_code_is_formatted(tmp_path: Path):
    for spec in ("hf:model", "sample_models.gpt:build"):
        for path, text in emit(plan_for(spec)).items():
            if path.endswith(".py") and not path.startswith("stages/stage_"):
                file = tmp_path / path
                file.parent.mkdir(exist_ok=True)
                file.write_text(text)
        options = ["--check", "--isolated", "--line-length", "100"]
        command = [*RUFF, "format", *options, str(tmp_path)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert run.returncode == 0, run.stdout
