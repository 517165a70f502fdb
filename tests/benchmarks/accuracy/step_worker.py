"""One of two ranks: steps of several exports, each round after one repetition of the profiler.

Arguments are a folder, and what ``test_step_times.py`` asks for as JSON. Rank 0 measures the
layers and leads; rank 1 follows. Rank 0 writes what was found to ``profile.json`` and
``steps.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from autosplit import profilers, workflow
from autosplit.profilers.links import Wire
from autosplit.serialize import dumps
from autosplit.types import ModelRef, Profile
from autosplit.verification.folder import modules_of


@dataclass
class Run:
    """A step of an export with some number of micro-batches, to be repeated."""

    pipeline: Any
    optimizer: torch.optim.Optimizer
    parts: Any

    def seconds(self) -> tuple[float, float]:
        """Return the time of the pipeline, and of the optimizer, on the slower rank."""
        self.pipeline.zero_grad()
        dist.barrier()
        begin = time.perf_counter()
        self.pipeline.step(self.parts)
        dist.barrier()
        middle = time.perf_counter()
        self.optimizer.step()
        dist.barrier()
        return middle - begin, time.perf_counter() - middle


def main() -> None:
    """Measure layers, link and steps in turn."""
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    runs, started = [], None
    for number in range(asked["cuts"]):
        with modules_of(folder / str(number)):
            runs += make(folder / str(number), asked["microbatches"], started)
            started = True
    wire, links, steps = Wire(1 - dist.get_rank(), torch.device("cpu")), [], []

    def round_of_steps() -> None:
        link = wire.lead() if dist.get_rank() == 0 else wire.follow()
        links.append(None if link is None else (link.bytes_per_s, link.latency_s))
        steps.append([run.seconds() for run in runs])

    profile = in_turn(round_of_steps, asked)
    if profile is not None:
        (folder / "profile.json").write_text(dumps(profile))
        (folder / "steps.json").write_text(json.dumps({"links": links, "steps": steps}))
    dist.barrier()
    dist.destroy_process_group()


def make(folder: Path, microbatches: list[int], started: bool | None) -> list[Run]:
    """Return the runs of one export."""
    import data
    from pipeline import Pipeline, load_stage, read_routing, split_batch
    from stages import STAGES

    torch.set_num_threads(1)
    if not started:
        dist.init_process_group("gloo")
        dist.barrier()
    rank, routing = dist.get_rank(), read_routing(folder / "routing.json")
    stage = STAGES[rank]()
    load_stage(stage, rank, folder / "weights")
    pipeline = Pipeline(
        routing, {rank: stage}, STAGES, device=torch.device("cpu"), loss=data.loss, schedule="1f1b"
    )
    optimizer = data.optimizer(pipeline.parameters(), 1e-5)
    runs = []
    for count in microbatches:
        batches = data.batches(count * routing.run.microbatch_size)
        inputs, targets = next(islice(batches, 1))
        runs.append(Run(pipeline, optimizer, split_batch(routing, inputs, targets, count)))
    return runs


def in_turn(step: Callable[[], None], asked: dict[str, Any]) -> Profile | None:
    """Profile on rank 0 and run a round on all ranks before each repetition."""
    go_on = torch.ones(1)

    def lead(done: int, total: int, what: str) -> None:
        dist.broadcast(go_on, 0)
        step()

    if dist.get_rank() == 0:
        options = profilers.ProfileOptions(
            device="cpu",
            min_repetitions=asked["repetitions"],
            max_repetitions=asked["repetitions"],
            max_seconds=3600,
        )
        ref = ModelRef(asked["spec"], batch_size=asked["rows"])
        profile = workflow.profile(ref, options, progress=lead)
        dist.broadcast(go_on.zero_(), 0)
        return profile
    while True:
        dist.broadcast(go_on, 0)
        if not go_on:
            return None
        step()


if __name__ == "__main__":
    main()
