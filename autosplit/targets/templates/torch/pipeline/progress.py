"""What a run tells as it goes: losses, times against the plan's, and logs."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from .routing import Routing
from .runner import Pipeline


class Progress:
    """Prints and records the steps; it speaks on the first rank that has the losses.

    Parameters
    ----------
    plan
        ``plan.json``.
    log_dir
        Folder for logs: ``steps.jsonl``, and TensorBoard's where it is installed.
    comparable
        Whether steps are of the size that the plan is for.
    """

    def __init__(
        self, pipeline: Pipeline, plan: Path, log_dir: Path | None, *, comparable: bool
    ) -> None:
        self.pipeline = pipeline
        data = json.loads(plan.read_text(encoding="utf-8"))
        self.predicted_s: float | None = data["step_s"] if comparable else None
        self.record: dict[str, list[float]] = {"losses": [], "step_s": []}
        self._logs = _Logs(log_dir) if log_dir and pipeline.speaks else None
        self._rows = 0
        self._since = 0

    def step(
        self, step: int, total: int, loss: float, seconds: float, rows: int, **more: float
    ) -> None:
        """Tell about one step; only the rank with the last stage knows its loss.

        Rows are those of all replicas.
        """
        self.record["step_s"].append(seconds)
        self._rows = rows
        if not self.pipeline.speaks:
            return
        self.record["losses"].append(loss)
        print(f"step {step}/{total}  loss {loss:.6f}  {seconds:.3f} s", flush=True)
        if self._logs:
            self._logs.write(step, {"loss": loss, "step_s": seconds, **more})

    def evaluated(self, step: int, loss: float) -> None:
        """Tell the mean loss of an evaluation."""
        if self.pipeline.speaks:
            print(f"step {step}  evaluation loss {loss:.6f}", flush=True)
            if self._logs:
                self._logs.write(step, {"evaluation_loss": loss})

    def summary(self) -> None:
        """Compare the steps since the last summary with the plan; all ranks call it."""
        busiest = _busiest_stage(self.pipeline)
        recent = self.record["step_s"][self._since :]
        self._since = len(self.record["step_s"])
        if not self.pipeline.speaks or not recent:
            return
        # The first step of a run also finds shapes and fills caches.
        seconds = median(recent[1:] or recent)
        said = f"measured {seconds * 1e3:.0f} ms"
        if self.predicted_s:
            said += f", predicted {self.predicted_s * 1e3:.0f} ms"
        said += f"; {self._rows / seconds:.1f} rows/s"
        if busiest is not None:
            said += f"; stage {busiest} is the bottleneck"
        if self.pipeline.device.type == "cuda":
            said += f"; peak {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB here"
        print(said, flush=True)

    def write(self, path: Path | None) -> None:
        """Write losses and step times as JSON."""
        if path and self.pipeline.speaks:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(self.record) + "\n", encoding="utf-8")


def _busiest_stage(pipeline: Pipeline) -> int | None:
    """Return the stage that computed longest; None where clocks of the CPU do not tell."""
    if pipeline.device.type != "cpu":
        return None
    seconds = torch.zeros(len(pipeline.routing.stages), dtype=torch.float64)
    for index, spent in pipeline.forward_s.items():
        seconds[index] = spent
    dist.all_reduce(seconds)
    return int(seconds.argmax())


def comparable(
    routing: Routing, rows: int, microbatches: int, accumulate: int, replicas: int
) -> bool:
    """Return whether a step has the size that the plan's prediction is for."""
    run = routing.run
    planned = run.replicas * run.microbatches * run.microbatch_size
    sizes = (accumulate, microbatches, rows, replicas)
    return sizes == (1, run.microbatches, planned, run.replicas)


class _Logs:
    """One JSON line per entry, and TensorBoard where it can be imported."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / "steps.jsonl").open("a", encoding="utf-8")
        self._board: Any = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return
        self._board = SummaryWriter(str(folder))

    def write(self, step: int, values: dict[str, float]) -> None:
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
