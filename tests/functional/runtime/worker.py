"""Run by torchrun: trains every scenario as a pipeline and compares it with the eager model."""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from pipeline import (
    Pipeline,
    PipelineError,
    Processes,
    check_alike,
    merge_outputs,
    split_batch,
    start,
)
from pipeline.batches import Microbatch
from pipeline.routing import Routing, read_routing
from pipeline.tree import rebuild
from torch import Tensor, nn

from autosplit.schedules import SCHEDULES
from autosplit.serialize import to_data
from autosplit.stages import split
from tests.functional.runtime.recipes import Recipe, RecipeStage
from tests.functional.runtime.scenarios import SCENARIOS, dropout, skips

MICROBATCHES = 4
SINGLE = ("gpipe", "1f1b")


def cut(recipe: Recipe, count: int, shift: int) -> dict[str, int]:
    """Return stages by position, the boundaries moved by ``shift`` steps."""
    steps = [step.name for step in recipe.steps]
    return {
        name: min(max((i + shift) * count // len(steps), 0), count - 1)
        for i, name in enumerate(steps)
    }


class Case:
    """One scenario cut in one way, on one rank."""

    def __init__(
        self, recipe: Recipe, processes: Processes, shift: int, schedule: str, folder: Path
    ) -> None:
        self.recipe = recipe
        program = recipe.program()
        count = processes.world * (1 if schedule in SINGLE else 2)
        kind = SCHEDULES[schedule](count, count, processes.world)
        specs, routing = split(program, cut(recipe, count, shift), count)
        run = {
            "ranks": [kind.rank_of(stage) for stage in range(count)],
            "schedule": "1f1b",
            "microbatches": MICROBATCHES,
            "microbatch_size": 2,
        }
        data = {"schema": "autosplit.routing", "version": [1, 0], **to_data(routing), "run": run}
        path = folder / f"{recipe.name}_{schedule}_{shift}_{processes.rank}.json"
        path.write_text(json.dumps(data))
        self.routing: Routing = read_routing(path)
        self.factories = [lambda spec=spec: RecipeStage(recipe, spec) for spec in specs]
        self.processes = processes

    def pipeline(self, schedule: str) -> Pipeline:
        """Return a fresh pipeline."""
        owners = enumerate(self.routing.run.ranks)
        mine = [stage for stage, owner in owners if owner == self.processes.rank]
        stages = {stage: self.factories[stage]() for stage in mine}
        made = Pipeline(
            self.routing,
            stages,
            self.factories,
            device=self.processes.device,
            loss=self.recipe.loss,
            schedule=schedule,
        )
        made.train(not self.recipe.evaluate)
        return made

    def batch(self, rows: int, length: int = 5, parts: int = MICROBATCHES) -> list[Microbatch]:
        """Return micro-batches."""
        inputs = self.recipe.inputs(rows, length)
        return list(split_batch(self.routing, inputs, self.recipe.targets(rows), parts))

    def eager(self, root: nn.Module, parts: list[Microbatch], *, backward: bool) -> list[Any]:
        """Run the model itself on the same micro-batches; return outputs or losses."""
        rows = sum(part.rows for part in parts)
        found = []
        for part in parts:
            values = self.recipe.run(root, {k: v.clone() for k, v in part.inputs.items()})
            if not backward:
                found.append({n: values[n] for n in self.routing.outputs})
                continue
            loss = self.recipe.loss(rebuild(self.routing.output_tree, values), *part.targets)
            (loss * part.rows / rows).backward()
            found.append(loss.detach())
        return found


def difference(actual: Tensor | None, expected: Tensor | None) -> float:
    """Return the largest difference; infinity for None against a tensor."""
    if actual is None or expected is None:
        return 0.0 if actual is expected else float("inf")
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    gap = (actual.double() - expected.double()).abs()
    return float(gap.max()) if gap.numel() else 0.0


def compare_state(pipeline: Pipeline, root: nn.Module) -> dict[str, float]:
    """Return the largest differences of gradients and buffers on this rank."""
    parameters = dict(root.named_parameters(remove_duplicate=False))
    buffers = dict(root.named_buffers(remove_duplicate=False))
    gaps = {"grad": 0.0, "buffer": 0.0}
    for stage in pipeline.stages.values():
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            gap = difference(parameter.grad, parameters[name].grad)
            gaps["grad"] = max(gaps["grad"], gap)
        for name, buffer in stage.named_buffers():
            gaps["buffer"] = max(gaps["buffer"], difference(buffer, buffers[name]))
    return gaps


def train(case: Case, schedule: str) -> dict[str, float]:
    """Two optimizer steps: even batch, two accumulated uneven ones, other length between."""
    pipeline = case.pipeline(schedule)
    root = case.recipe.make_root().train(not case.recipe.evaluate)
    worst = {"loss": 0.0, "grad": 0.0, "buffer": 0.0, "weight": 0.0}
    optimizers = [torch.optim.SGD(root.parameters(), 0.05, momentum=0.9)]
    if pipeline.parameters():
        optimizers.append(torch.optim.SGD(pipeline.parameters(), 0.05, momentum=0.9))
    batches = [[case.batch(8)], [case.batch(11, 6), case.batch(8, 5, 3)], [case.batch(4, 5, 2)]]
    for accumulated in batches:
        for optimizer in optimizers:
            optimizer.zero_grad()
        for parts in accumulated:
            losses = pipeline.step(copy.deepcopy(parts))
            expected = case.eager(root, parts, backward=True)
            if pipeline.has_last:
                assert len(losses) == len(parts)
                gaps = map(difference, losses, expected)
                worst["loss"] = max(worst["loss"], *gaps)
        for kind, gap in compare_state(pipeline, root).items():
            worst[kind] = max(worst[kind], gap)
        for optimizer in optimizers:
            optimizer.step()
    parameters = dict(root.named_parameters(remove_duplicate=False))
    for stage in pipeline.stages.values():
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            worst["weight"] = max(worst["weight"], difference(parameter, parameters[name]))
    worst["copies"] = 0.0 if copies_are_equal(case, pipeline) else float("inf")
    return worst


def copies_are_equal(case: Case, pipeline: Pipeline) -> bool:
    """Whether all copies of shared parameters are equal to the last bit."""
    mine = {
        (shared.name, stage): pipeline.stages[stage].get_parameter(name).tolist()
        for shared in case.routing.shared
        for stage, name in shared.holders
        if stage in pipeline.stages
    }
    gathered: list[Any] = [None] * case.processes.world
    dist.all_gather_object(gathered, mine)
    found: dict[str, Any] = {}
    return all(
        found.setdefault(name, values) == values
        for part in gathered
        for (name, _), values in part.items()
    )


def switch(case: Case, schedule: str) -> dict[str, float]:
    """Dropout is on after ``train()`` and off after ``train(False)``."""
    pipeline = case.pipeline(schedule)
    means = []
    for mode in (True, False, False):
        pipeline.train(mode)
        losses = pipeline.step(case.batch(8))
        means.append(sum(map(float, losses)))
    if not pipeline.has_last:
        return {"switch": 0.0}
    off_is_steady = means[1] == means[2]
    on_differs = means[0] != means[1]
    return {"switch": 0.0 if off_is_steady and on_differs else float("inf")}


def infer(case: Case, schedule: str) -> dict[str, float]:
    """Inference over a batch that does not divide evenly."""
    pipeline = case.pipeline(schedule)
    pipeline.train(False)
    root = case.recipe.make_root().eval()
    parts = case.batch(9)
    outputs = pipeline.infer(copy.deepcopy(parts))
    with torch.no_grad():
        expected = case.eager(root, parts, backward=False)
    if not pipeline.has_last:
        assert outputs == []
        return {"output": 0.0}
    merged = merge_outputs(case.routing, outputs)
    reference = merge_outputs(case.routing, expected)
    return {"output": max(difference(merged[k], reference[k]) for k in reference)}


def main(folder: Path, runs: list[str]) -> None:
    """Run every scenario for each ``SCHEDULE/SHIFT``; write the results of this rank."""
    warnings.filterwarnings("ignore")
    world = int(os.environ["WORLD_SIZE"])
    results: dict[str, Any] = {}
    with start(Probe(world), device="cpu", threads=1, timeout_s=60) as processes:  # type: ignore[arg-type]
        for make in SCENARIOS:
            for schedule, shift in (run.split("/") for run in runs):
                case = Case(make(), processes, int(shift), schedule, folder)
                results[f"{make.__name__} {schedule}/{shift}"] = {
                    **train(case, schedule),
                    **infer(case, schedule),
                    **(switch(case, schedule) if make is dropout else {}),
                    **(disagreement(case) if make is skips else {}),
                }
    (folder / f"result_{processes.rank}.json").write_text(json.dumps(results))


def disagreement(case: Case) -> dict[str, float]:
    """Every rank notices when one of them has other data, and none when all have the same."""
    parts = case.batch(8)
    check_alike(parts, case.processes.device)
    if case.processes.rank == case.processes.world - 1:
        parts[2].inputs["x"][0] += 1
    try:
        check_alike(parts, case.processes.device)
    except PipelineError:
        return {"disagreement": 0.0}
    return {"disagreement": float("inf")}


class Probe:
    """As much of a routing table as joining the process group needs."""

    def __init__(self, world: int) -> None:
        self.run = self
        self.ranks = tuple(range(world))
        self.replicas = 1


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2:])
    except Exception:
        traceback.print_exc()
        raise SystemExit(1) from None
