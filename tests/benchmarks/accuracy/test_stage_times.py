"""How well profiles predict the time of the stages that are exported.

Every repetition of the profiler is followed by one micro-batch through the exported stages of
every cut, so that prediction and reality see the same machine. Times are CPU times of the
thread. Thresholds are printed, not asserted: they hold on a machine with nothing else to do.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from autosplit import profilers
from autosplit.modelspec import load_model
from autosplit.profilers import ProfileOptions
from autosplit.stages.types import Routing
from autosplit.tracers import trace
from autosplit.types import ModelRef
from autosplit.verification.chain import read_inputs
from autosplit.verification.folder import read_export
from autosplit.verification.reference import micro_batches
from tests.benchmarks.accuracy.cutting import export, plans, stage_seconds
from tests.benchmarks.accuracy.subjects import NAMES, reference
from tests.benchmarks.accuracy.tables import median_and_worst, share, show, verdict

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
ROWS = 8
REPETITIONS = int(os.environ.get("AUTOSPLIT_BENCH_REPETITIONS", "20"))
WARM_UP = 2
CLOSE = 0.04
"""Cuts whose bottlenecks differ by less may change places."""

pytestmark = [pytest.mark.slow, pytest.mark.hf, pytest.mark.timeout(600)]

Samples = npt.NDArray[np.float64]


class Pipeline:
    """Exported stages in one process, run as a pipeline runs them, micro-batch by micro-batch."""

    def __init__(
        self, stages: Sequence[nn.Module], routing: Routing, inputs: Mapping[str, Tensor]
    ) -> None:
        self._stages = list(zip(stages, routing.stages, strict=True))
        self._inputs = inputs
        self._seeds: dict[str, Tensor] = {}

    def run(self) -> list[float]:
        """Run forward and backward of one micro-batch; return the seconds of each stage."""
        values = dict(self._inputs)
        tape: list[tuple[dict[str, Tensor], dict[str, Tensor]]] = []
        seconds: list[float] = []
        for stage, route in self._stages:
            taken = {
                name: values[name].detach().requires_grad_(values[name].requires_grad)
                for name in route.take
            }
            own = [value.clone() if name in route.clone else value for name, value in taken.items()]
            begin = time.thread_time()
            given = stage(*own)
            seconds.append(time.thread_time() - begin)
            made = dict(
                zip(route.give, (given,) if isinstance(given, Tensor) else given, strict=True)
            )
            values.update(made)
            tape.append((taken, made))
            del own, given
        self._backward(tape, seconds)
        return seconds

    def _backward(
        self, tape: list[tuple[dict[str, Tensor], dict[str, Tensor]]], seconds: list[float]
    ) -> None:
        gradients = dict(self._seeds or self._seed(tape[-1][1]))
        for index in reversed(range(len(tape))):
            taken, made = tape.pop()
            arrived = {name: gradients[name] for name in made if name in gradients}
            begin = time.thread_time()
            if arrived:
                torch.autograd.backward([made[name] for name in arrived], list(arrived.values()))
            seconds[index] += time.thread_time() - begin
            for name, value in taken.items():
                if value.grad is not None:
                    known = gradients.get(name)
                    gradients[name] = value.grad if known is None else known + value.grad

    def _seed(self, made: Mapping[str, Tensor]) -> dict[str, Tensor]:
        self._seeds = {n: torch.ones_like(v) for n, v in made.items() if v.requires_grad}
        return self._seeds


@dataclass
class Found:
    """Seconds of the stages of every cut: predicted (cuts, 2), real (repetitions, cuts, 2)."""

    predicted: Samples
    rounds: Samples

    @property
    def real(self) -> Samples:
        """Medians over the repetitions."""
        return np.median(self.rounds, axis=0)

    @property
    def bottleneck_errors(self) -> list[float]:
        """Error of the slower stage of each cut."""
        return list(np.abs(self.predicted.max(axis=1) / self.real.max(axis=1) - 1))

    @property
    def stage_errors(self) -> list[float]:
        """Errors of the stages that take more than a tenth of a step."""
        large = self.real > 0.1 * self.real.sum(axis=1, keepdims=True)
        return list(np.abs(self.predicted / self.real - 1)[large])

    @property
    def repeat(self) -> float:
        """Largest difference of a bottleneck between even and odd repetitions."""
        even, odd = (np.median(self.rounds[k::2], axis=0).max(axis=1) for k in (0, 1))
        return float(np.abs(even / odd - 1).max())

    @property
    def inversions(self) -> int:
        """Pairs of cuts that are told the wrong way round though they differ clearly."""
        told, real = self.predicted.max(axis=1), self.real.max(axis=1)
        return sum(
            (told[a] < told[b]) != (real[a] < real[b])
            for a, b in combinations(range(len(real)), 2)
            if abs(real[a] / real[b] - 1) > CLOSE
        )

    @property
    def regret(self) -> float:
        """How much worse the cut is that is told best than the best one."""
        told, real = self.predicted.max(axis=1), self.real.max(axis=1)
        return float(real[told.argmin()] / real.min() - 1)


@dataclass
class Rounds:
    """Runs all pipelines whenever the profiler begins a repetition."""

    pipelines: Sequence[Pipeline]
    seconds: list[list[list[float]]] = field(default_factory=list)

    def __call__(self, done: int, total: int, what: str) -> None:
        self.seconds.append([pipeline.run() for pipeline in self.pipelines])


def measure(ref: ModelRef, folder: Path) -> Found:
    """Predict and measure the stages of every cut of a model in turn."""
    loaded = load_model(ref)
    traced = trace(loaded)
    options = ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)
    quick = profilers.profile(traced, options, model=ref)
    chosen = list(plans(quick, SHARES, microbatches=4))
    (batch,) = micro_batches(loaded, ref.batch_size, 1)
    pipelines = []
    for number, plan in enumerate(chosen):
        export(plan, traced, folder / str(number))
        written = read_export(folder / str(number))
        stages = [stage.train() for stage in written.stages]
        pipelines.append(Pipeline(stages, written.routing, read_inputs(written.routing, batch)))
    rounds = Rounds(pipelines)
    options = ProfileOptions(
        device="cpu", min_repetitions=REPETITIONS, max_repetitions=REPETITIONS, max_seconds=3600
    )
    profile = profilers.profile(traced, options, rounds, model=ref)
    told = np.array([stage_seconds(profile, plan) for plan in chosen])
    return Found(told, np.array(rounds.seconds[WARM_UP:]))


def test_stages_are_predicted_from_their_layers(tmp_path: Path) -> None:
    found = {
        name: measure(reference(name, ROWS), tmp_path / name.replace(" ", "_")) for name in NAMES
    }
    columns = ("model", "step", "bottleneck", "stages", "repeat", "inversions", "regret")
    show(
        "Stage times: error of the prediction, median / worst over the cuts",
        columns,
        [
            (
                name,
                f"{statistics.median(each.real.sum(axis=1)) * 1e3:.1f} ms",
                median_and_worst(each.bottleneck_errors),
                median_and_worst(each.stage_errors),
                share(each.repeat),
                str(each.inversions),
                share(each.regret),
            )
            for name, each in found.items()
        ],
    )
    bottlenecks = [error for each in found.values() for error in each.bottleneck_errors]
    stages = [error for each in found.values() for error in each.stage_errors]
    show(
        "Stage times: all models",
        ("what", "median", "worst"),
        [
            (
                "bottleneck of a cut",
                verdict(statistics.median(bottlenecks), 0.03),
                verdict(max(bottlenecks), 0.08),
            ),
            (
                "stages above 10 % of the step",
                verdict(statistics.median(stages), 0.04),
                verdict(max(stages), 0.15),
            ),
            ("regret", "", verdict(max(each.regret for each in found.values()), 0.02)),
        ],
    )
    assert all(np.isfinite(each.predicted).all() for each in found.values())
