"""An export that runs on torch and safetensors alone, over ``torch.distributed.pipelining``."""

from __future__ import annotations

import ast
import dataclasses
import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template

from autosplit import schedules
from autosplit.codegen import StageSource
from autosplit.errors import AutosplitError
from autosplit.launchers import LAUNCHERS, Launch
from autosplit.program import Program, TensorSpec
from autosplit.serialize import dumps, read_text, to_data
from autosplit.stages import Routing, modules_to_recompute
from autosplit.targets.original import FOLDER, original_files, what_it_needs
from autosplit.types import Artifact, ModelCode, Plan

_VERSION = [1, 0]
_ROUTING_VERSION = [1, 2]
_COPIED = ("train.py", "infer.py", "checkpoint.py", "pipeline/*.py")
_TEMPLATES = Path(__file__).parent / "templates" / "torch"


class TorchTarget:
    """The target "torch"."""

    def emit(
        self,
        plan: Plan,
        program: Program,
        routing: Routing,
        sources: tuple[StageSource, ...],
        code: ModelCode | None = None,
    ) -> tuple[Artifact, ...]:
        """Return all text files of the export; see ``Target.emit``.

        Raises
        ------
        AutosplitError
            If the plan's schedule is one that this runtime does not run.
        """
        _check(plan)
        ranks = max(stage.rank for stage in plan.stages) + 1
        launch = Launch(ranks, plan.request.replicas)
        found = [
            *_copied(),
            *(Artifact(f"stages/stage_{each.index}.py", each.text) for each in sources),
            Artifact("stages/__init__.py", _stages_module(len(sources))),
            *(() if code is None else original_files(code)),
            Artifact("data.py", _data_module(plan, code)),
            Artifact("README.md", _readme(plan, code)),
            Artifact("routing.json", _routing_json(plan, program, routing)),
            Artifact("plan.json", dumps(plan)),
            Artifact("report.json", _report_json(sources)),
            *LAUNCHERS["torchrun"].emit(launch),
        ]
        return tuple(sorted(found, key=lambda artifact: artifact.path))


def _check(plan: Plan) -> None:
    """Refuse a plan that the runtime cannot run; its rules are those of the planner's schedules."""
    request = plan.request
    ranks = [stage.rank for stage in plan.stages]
    schedule = schedules.make(request.schedule, len(ranks), request.microbatches, max(ranks) + 1)
    expected = [schedule.rank_of(stage) for stage in range(len(ranks))]
    if ranks != expected:
        raise AutosplitError(
            f"schedule {schedule.name} runs its stages on ranks {', '.join(map(str, expected))}",
            cause=f"the plan places its stages on ranks {', '.join(map(str, ranks))}",
        )


def _copied() -> Iterator[Artifact]:
    for pattern in _COPIED:
        for path in sorted(_TEMPLATES.glob(pattern)):
            name = path.relative_to(_TEMPLATES).as_posix()
            yield Artifact(name, path.read_text(encoding="utf-8"))


def _template(name: str) -> Template:
    return Template((_TEMPLATES / name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------- files made for this export


def _stages_module(count: int) -> str:
    numbers = range(count)
    imports = "".join(f"from .stage_{k} import Stage{k}\n" for k in numbers)
    names = ", ".join(f"Stage{k}" for k in numbers)
    comma = "," if count == 1 else ""
    listed = "".join(f'    "Stage{k}",\n' for k in numbers)
    return (
        f'"""The stages of the pipeline, in order."""\n\n{imports}\n'
        f'__all__ = [\n    "STAGES",\n{listed}]\n\nSTAGES = ({names}{comma})\n'
    )


def _data_module(plan: Plan, code: ModelCode | None) -> str:
    source = _source(plan.model.spec)
    own = _defined_names(source)
    batches = "batches" in own
    loss = batches and "loss" in own
    imports = ["load_source"] if batches else ["example_batches"]
    imports += [] if loss else ["own_loss"]
    stand_in = "  # the model's own, else mean squares of its outputs"
    setup = (
        f"SOURCE = load_source({json.dumps(_place(source, code), ensure_ascii=False)})"
        if batches
        else 'ROUTING = read_routing(HERE / "routing.json")'
    )
    return _template("data.py.template").substitute(
        read="" if batches else "from pipeline import read_routing\n",
        imports=", ".join(imports),
        setup=setup,
        batches="SOURCE.batches(batch_size)"
        if batches
        else 'example_batches(ROUTING, HERE / "weights", batch_size)',
        loss="SOURCE.loss(output, *targets)" if loss else f"own_loss(output){stand_in}",
    )


def _source(spec: str) -> str:
    """Return the file or module of a spec, "" for one without source."""
    return "" if spec.startswith("hf:") else spec.rpartition(":")[0]


def _place(source: str, code: ModelCode | None) -> str:
    """Return where the export finds the model's file: its copy, if there is one."""
    return f"{FOLDER}/{code.source}" if code is not None and code.files else source


def _defined_names(source: str) -> frozenset[str]:
    """Return the names at the top of the model's file, read without running it."""
    path = _file_of(source)
    if path is None:
        return frozenset()
    found: set[str] = set()
    for node in ast.parse(read_text(path)).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            found.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return frozenset(found)


def _file_of(source: str) -> Path | None:
    if source.endswith(".py"):
        return Path(source) if Path(source).is_file() else None
    try:
        found = find_spec(source) if source else None
    except ModuleNotFoundError:
        return None
    if found is None or found.origin is None or not found.origin.endswith(".py"):
        return None
    return Path(found.origin)


def _routing_json(plan: Plan, program: Program, routing: Routing) -> str:
    run = {
        "ranks": [stage.rank for stage in plan.stages],
        "schedule": plan.request.schedule,
        "microbatches": plan.request.microbatches,
        "microbatch_size": _microbatch_size(program),
        "replicas": plan.request.replicas,
        "sharding": plan.request.sharding if plan.request.replicas > 1 else "replicate",
        "recompute": _recompute(plan, program),
    }
    data = {
        "schema": "autosplit.routing",
        "version": _ROUTING_VERSION,
        **to_data(routing),
        "run": run,
    }
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _recompute(plan: Plan, program: Program) -> list[tuple[str, ...]]:
    """Return the modules of each stage that are computed again in backward."""
    operations = dict(zip(plan.order, plan.nodes, strict=True))

    def of(layers: tuple[str, ...]) -> list[str]:
        return [node for layer in layers for node in operations[layer]]

    return [
        modules_to_recompute(program, of(stage.layers), of(stage.recompute))
        for stage in plan.stages
    ]


def _microbatch_size(program: Program) -> int:
    """Return the rows of the example inputs."""
    for spec in program.inputs:
        value = program.node[spec.name].value
        if spec.batch_dim is not None and isinstance(value, TensorSpec):
            return program.evaluate(value.shape[spec.batch_dim])
    return 1


def _report_json(sources: tuple[StageSource, ...]) -> str:
    stages = [
        {
            "stage": each.index,
            "may_be_cast": not each.fixed_at,
            "dtype_fixed_at": list(each.fixed_at),
            "rewrites": [dataclasses.asdict(r) for r in each.rewrites],
        }
        for each in sources
    ]
    data = {"schema": "autosplit.report", "version": _VERSION, "stages": stages}
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _readme(plan: Plan, code: ModelCode | None) -> str:
    rows = "".join(
        f"| {k} | {stage.rank} | {stage.layers[0]} … {stage.layers[-1]} | {len(stage.layers)} |\n"
        for k, stage in enumerate(plan.stages)
    )
    ranks = max(stage.rank for stage in plan.stages) + 1
    return _template("README.md.template").substitute(
        needs=what_it_needs(code),
        stages=len(plan.stages),
        ranks=ranks,
        processes=ranks * plan.request.replicas,
        replicas=_replicas(plan),
        rows=rows.rstrip("\n"),
        microbatches=plan.request.microbatches,
        schedule=plan.request.schedule,
    )


def _replicas(plan: Plan) -> str:
    if plan.request.replicas == 1:
        return "one copy of the pipeline"
    return f"{plan.request.replicas} copies of the pipeline, sharding {plan.request.sharding}"
