"""How well sums over layers predict the time of stages, for several ways of estimating.

Every round measures the layers once and then both stages of every cut, so that all see the same
machine. Times are CPU times of the thread. Asserts only that the way in use is no gross miss.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from autosplit.layers import Grouping, Layer, Work, group
from autosplit.modelspec import load_model
from autosplit.profilers.allocator import keep_freed_memory
from autosplit.profilers.base import ProfileOptions
from autosplit.profilers.clocks import CpuClock
from autosplit.profilers.environment import input_tensors, prepared, state_tensors
from autosplit.profilers.passes import Piece, Step
from autosplit.profilers.session import Session, trained
from autosplit.profilers.statistics import classes_of
from autosplit.profilers.whole import WholeStep
from autosplit.tracers import Trace, trace
from autosplit.tracers.replay import Replay, compile_nodes
from autosplit.types import ModelRef

MODELS = Path(__file__).resolve().parents[3] / "sample_models"
NAMES = ("gpt", "mlp", "resnet", "unet", "encoder_decoder", "moe")
SHARES = (0.2, 0.35, 0.5, 0.65, 0.8)
ROUNDS = 12
WARM_UP = 2
LARGEST_OFFSET = 3.0
OFFSETS = ("none", "empty layer", "whole step")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Samples = npt.NDArray[np.float64]
Estimator = Callable[[Samples, Sequence[int]], float]
"""From samples (rounds, layers) and the layers of a class to the time of one of them."""


def quantile(share: float) -> Estimator:
    return lambda samples, members: float(np.quantile(samples[:, list(members)], share))


ESTIMATORS = {"median": quantile(0.5), "quartile": quantile(0.25)}


# ---------------------------------------------------------------- measuring


@dataclass
class Pipeline:
    """Stages as an export runs them: on detached inputs, with one backward call for each."""

    stages: Sequence[Replay]
    inputs: dict[str, Tensor]
    seeds: dict[str, Tensor]

    def run(self) -> list[float]:
        """Run forward and backward of one micro-batch and return the seconds of each stage."""
        values, gradients = dict(self.inputs), dict(self.seeds)
        tape = []
        seconds = []
        for stage in self.stages:
            taken = {
                name: values[name].detach().requires_grad_(values[name].requires_grad)
                for name in stage.inputs
            }
            pairs = zip(taken.values(), stage.clone, strict=True)
            own = [value.clone() if writes else value for value, writes in pairs]
            begin = time.thread_time()
            given = stage(*own)
            seconds.append(time.thread_time() - begin)
            made = dict(zip(stage.outputs, given, strict=True))
            values.update(made)
            tape.append((taken, made))
            del own, given
        for index in reversed(range(len(tape))):
            taken, made = tape.pop()
            arrived = {name: gradients[name] for name in made if name in gradients}
            begin = time.thread_time()
            torch.autograd.backward([made[name] for name in arrived], list(arrived.values()))
            seconds[index] += time.thread_time() - begin
            for name, value in taken.items():
                if value.grad is not None:
                    known = gradients.get(name)
                    gradients[name] = value.grad if known is None else known + value.grad
        return seconds


@dataclass
class Measurement:
    """Seconds of each round: (rounds, layers), (rounds,) and (rounds, cuts, stages)."""

    cuts: list[int]
    classes: list[list[int]]
    layers: Samples = field(default_factory=lambda: np.empty(0))
    whole: Samples = field(default_factory=lambda: np.empty(0))
    stages: Samples = field(default_factory=lambda: np.empty(0))
    empty_s: float = 0.0
    backwards: int = 0


def measure(subject: Trace) -> Measurement:
    """Measure layers, the whole step and the stages of every cut in turn."""
    grouping = group(subject.program)
    cuts = balanced(subject, grouping)
    device = torch.device("cpu")
    with keep_freed_memory(), prepared(subject, device, threads=1, inference=False):
        state, inputs = state_tensors(subject, device), input_tensors(subject)

        def compiled(*parts: Layer) -> Replay:
            nodes = [node for part in parts for node in part.nodes]
            return compile_nodes(subject, nodes, readers=grouping.layer_of)

        pieces = [
            Piece(part, compiled(part), trained(subject.program.states_in(part.nodes), state))
            for part in grouping.layers
        ]
        step = Step(pieces, inputs, frozenset(subject.program.outputs), True)
        whole = WholeStep(compiled(*grouping.layers), inputs, True)
        options = ProfileOptions(device="cpu")
        session = Session(step, state.values(), whole, device, CpuClock(1), options)
        session.saved()
        pipelines = [
            Pipeline(
                (compiled(*grouping.layers[:cut]), compiled(*grouping.layers[cut:])),
                inputs,
                step.seeds,
            )
            for cut in cuts
        ]
        rounds = [
            (session.repetition(), [pipeline.run() for pipeline in pipelines])
            for _ in range(WARM_UP + ROUNDS)
        ][WARM_UP:]
    found = Measurement(cuts, classes_of(session.keys()))
    found.layers = np.array([np.add(one.forward, one.backward) for one, _ in rounds])
    found.whole = np.array([sum(one.whole or ()) for one, _ in rounds])
    found.stages = np.array([each for _, each in rounds])
    found.empty_s = float(np.median([second for one, _ in rounds for second in one.empty]))
    found.backwards = int(np.count_nonzero(rounds[-1][0].backward))
    return found


def balanced(subject: Trace, grouping: Grouping) -> list[int]:
    """Return places to cut near the wanted shares of the estimated work."""
    work, node = Work(subject.program), subject.program.node
    costs = [sum(work.cost(node[name]) for name in layer.nodes) for layer in grouping.layers]
    running = np.cumsum(costs) / sum(costs)
    places = [int(np.searchsorted(running, share)) + 1 for share in SHARES]
    return sorted({min(max(place, 1), len(costs) - 1) for place in places})


# ---------------------------------------------------------------- judging


def predicted(found: Measurement, estimate: Estimator, offset: str) -> Samples:
    """Return the seconds of both stages of every cut: (cuts, 2)."""
    seconds = np.zeros(found.layers.shape[1])
    for members in found.classes:
        seconds[members] = estimate(found.layers, members)
    excess_s = (seconds.sum() - estimate(found.whole[:, None], [0])) / max(1, found.backwards - 1)
    each_s = {
        "none": 0.0,
        "empty layer": found.empty_s,
        "whole step": min(max(0.0, excess_s), LARGEST_OFFSET * found.empty_s),
    }[offset]
    sums = [(seconds[:cut], seconds[cut:]) for cut in found.cuts]
    return np.array([[part.sum() - (len(part) - 1) * each_s for part in parts] for parts in sums])


@dataclass
class Errors:
    """Relative errors of one way of estimating, and the worst of the cuts it would choose."""

    stages: list[float] = field(default_factory=list)
    large_stages: list[float] = field(default_factory=list)
    bottlenecks: list[float] = field(default_factory=list)
    regret: float = 0.0

    def add(self, told: Samples, real: Samples) -> None:
        off = np.abs(told / real - 1)
        self.stages += list(off.ravel())
        self.large_stages += list(off[real > 0.1 * real.sum(axis=1, keepdims=True)])
        told_worst, real_worst = told.max(axis=1), real.max(axis=1)
        self.bottlenecks += list(np.abs(told_worst / real_worst - 1))
        regret = real_worst[told_worst.argmin()] / real_worst.min() - 1
        self.regret = max(self.regret, float(regret))

    def row(self) -> str:
        pairs = (self.stages, self.large_stages, self.bottlenecks)
        texts = [f"{statistics.median(each):7.1%} / {max(each):6.1%}" for each in pairs]
        return f"{'   '.join(texts)}   {self.regret:6.1%}"


@pytest.mark.parametrize("builder", ["build", "build_large"])
def test_stages_are_predicted_from_their_layers(builder: str) -> None:
    measured: list[Measurement] = []
    print(f"\n{'model':16} {'step':>9} layers cuts {'spread':>7} sum/whole  empty layer")
    for name in NAMES:
        found = measure(trace(load_model(ModelRef(spec=f"{MODELS / name}.py:{builder}"))))
        measured.append(found)
        low, middle, high = np.quantile(found.stages, (0.25, 0.5, 0.75), axis=0)
        print(
            f"{name:16} {np.median(found.whole) * 1e3:6.1f} ms {found.layers.shape[1]:6} "
            f"{len(found.cuts):4} {np.median((high - low) / middle):7.1%} "
            f"{np.median(found.layers.sum(axis=1) / found.whole):9.3f} "
            f"{found.empty_s * 1e6:9.0f} us"
        )
    print(
        f"\n{'estimate':8} {'offset':12}  stage med / worst   >10 % of step       bottleneck       "
    )
    shown: dict[tuple[str, str], Errors] = {}
    for label, estimate in ESTIMATORS.items():
        for offset in OFFSETS:
            total = shown[label, offset] = Errors()
            for found in measured:
                total.add(predicted(found, estimate, offset), np.median(found.stages, axis=0))
            print(f"{label:8} {offset:12} {total.row()}")
    assert statistics.median(shown["median", "whole step"].bottlenecks) < 0.15
