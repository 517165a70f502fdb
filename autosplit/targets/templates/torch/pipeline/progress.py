"""What a run tells as it goes: losses, times and memory against the plan's, and logs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

from .eventlog import EventLog
from .routing import Routing
from .runner import Pipeline

_AS_PLANNED = 0.95
"""Stages with this share of the largest planned time may as well turn out to be the largest."""


@dataclass(frozen=True)
class Prediction:
    """What a plan says of a step.

    Parameters
    ----------
    step_s
        Time of the step; None where steps are of another size than planned.
    stage_s
        Compute time of each stage for one micro-batch.
    rank_bytes
        Peak memory of each rank of a pipeline.
    """

    step_s: float | None
    stage_s: tuple[float, ...]
    rank_bytes: tuple[int, ...]

    @classmethod
    def read(cls, plan: Path, *, comparable: bool) -> Prediction:
        """Read ``plan.json``."""
        data = json.loads(plan.read_text(encoding="utf-8"))
        stages = data["stages"]
        memory = [0] * (max(stage["rank"] for stage in stages) + 1)
        for stage in stages:
            memory[stage["rank"]] += sum(stage["memory"].values())
        return cls(
            data["step_s"] if comparable else None,
            tuple(stage["forward_s"] + stage["backward_s"] for stage in stages),
            tuple(memory),
        )

    def bottleneck(self, measured_s: Sequence[float]) -> str:
        """Return which stage computed longest, and which one was planned to if it is another."""
        busiest = max(range(len(measured_s)), key=measured_s.__getitem__)
        said = f"stage {busiest} is the bottleneck"
        most = max(self.stage_s)
        if self.stage_s[busiest] < _AS_PLANNED * most:
            said += f", where stage {self.stage_s.index(most)} was predicted to be"
        return said

    def memory(self, peak_bytes: Sequence[int]) -> str:
        """Return the largest peak of all ranks beside what was predicted for that rank."""
        rank = max(range(len(peak_bytes)), key=peak_bytes.__getitem__)
        said = f"peak memory {peak_bytes[rank] / 2**30:.2f} GiB on rank {rank}"
        if self.step_s:
            predicted = self.rank_bytes[rank % len(self.rank_bytes)]
            said += f", predicted {predicted / 2**30:.2f} GiB"
        return said


class Progress:
    """Prints and records the steps; it speaks on the first rank that has the losses.

    Parameters
    ----------
    plan
        ``plan.json``.
    log_dir
        Folder for logs: ``steps.jsonl``, and a file that TensorBoard reads.
    comparable
        Whether steps are of the size that the plan is for.
    """

    def __init__(
        self, pipeline: Pipeline, plan: Path, log_dir: Path | None, *, comparable: bool
    ) -> None:
        self.pipeline = pipeline
        self.predicted = Prediction.read(plan, comparable=comparable)
        self.record: dict[str, list[float]] = {"losses": [], "step_s": []}
        self._logs = _Logs(log_dir) if log_dir and pipeline.speaks else None
        self._recent: list[tuple[float, int]] = []

    def step(self, step: int, total: int, loss: float, seconds: float, rows: int) -> None:
        """Tell about one step; only the rank with the last stage knows its loss.

        Rows are those of all replicas.
        """
        self.record["step_s"].append(seconds)
        self._recent.append((seconds, rows))
        if not self.pipeline.speaks:
            return
        self.record["losses"].append(loss)
        print(f"step {step}/{total}  loss {loss:.6f}  {seconds:.3f} s", flush=True)
        if self._logs:
            rate = rows / seconds
            self._logs.write(step, {"loss": loss, "step_s": seconds, "rows_per_s": rate})

    def evaluated(self, step: int, loss: float) -> None:
        """Tell the mean loss of an evaluation."""
        if self.pipeline.speaks:
            print(f"step {step}  evaluation loss {loss:.6f}", flush=True)
            if self._logs:
                self._logs.write(step, {"evaluation_loss": loss})

    def summary(self) -> None:
        """Compare the steps since the last summary with the plan; all ranks call it."""
        computed_s, peak_bytes = _of_all_ranks(self.pipeline)
        # The first step of a run also finds shapes and fills caches.
        first = len(self._recent) == len(self.record["step_s"])
        recent = self._recent[1:] if first and len(self._recent) > 1 else self._recent
        self._recent = []
        if not self.pipeline.speaks or not recent:
            return
        seconds = [taken for taken, _ in recent]
        said = f"measured {median(seconds) * 1e3:.0f} ms"
        if self.predicted.step_s:
            said += f", predicted {self.predicted.step_s * 1e3:.0f} ms"
        said += f"; {sum(rows for _, rows in recent) / sum(seconds):.1f} rows/s"
        said += f"; {self.predicted.bottleneck(computed_s)}"
        if any(peak_bytes):
            said += f"; {self.predicted.memory(peak_bytes)}"
        print(said, flush=True)

    def write(self, path: Path | None) -> None:
        """Write losses and step times as JSON."""
        if path and self.pipeline.speaks:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.record) + "\n", encoding="utf-8")


def _of_all_ranks(pipeline: Pipeline) -> tuple[list[float], list[int]]:
    """Return seconds of each stage, and the peak of memory of each rank where it is known.

    What a process has on the CPU is mostly torch itself, and compares with no prediction.
    """
    stages = len(pipeline.routing.stages)
    found = torch.zeros(stages + dist.get_world_size(), dtype=torch.float64)
    for index, seconds in pipeline.computed_s().items():
        found[index] = seconds
    if pipeline.device.type == "cuda":
        found[stages + dist.get_rank()] = torch.cuda.max_memory_allocated()
    there = found.to(pipeline.device)
    dist.all_reduce(there)
    values = there.tolist()
    return values[:stages], [int(value) for value in values[stages:]]


def comparable(
    routing: Routing, rows: int, microbatches: int, accumulate: int, replicas: int
) -> bool:
    """Return whether a step has the size that the plan's prediction is for."""
    run = routing.run
    planned = run.replicas * run.microbatches * run.microbatch_size
    sizes = (accumulate, microbatches, rows, replicas)
    return sizes == (1, run.microbatches, planned, run.replicas)


class _Logs:
    """One JSON line per entry, and the same for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "steps.jsonl").open("a", encoding="utf-8")
        self._events = EventLog(folder)

    def write(self, step: int, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        self._events.write(step, values)
