"""What the planner is measured on: public workloads, and graphs as large as wanted."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from pathlib import Path

from autosplit.readers import Workload, read
from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net
from autosplit.types import Profile
from tests.builders import profile

SHARED = Path(__file__).resolve().parents[4] / "shared"
NEURIPS = SHARED / "workloads" / "dnn_partitioning"
PIPEDREAM = SHARED / "workloads" / "pipedream"
WORKLOADS = sorted(path.stem for path in NEURIPS.glob("*.json"))

_SAVED_SHARE = 0.25
"""Bytes saved for backward, as a share of a node's size: the files know only sizes."""


def workload(name: str) -> Workload:
    """Return one of the workloads with published optima."""
    found = read(NEURIPS / f"{name}.json")
    assert isinstance(found, Workload)
    return found


def published(name: str) -> tuple[float, float]:
    """Return the published optimum in seconds without and with the host CPU."""
    row = re.search(
        rf"^\| {name} \| \d+ \| ([\d.]+) \| ([\d.]+) \|",
        (NEURIPS / "REFERENCE.md").read_text(),
        re.M,
    )
    assert row is not None
    return float(row[1]) * 1e-3, float(row[2]) * 1e-3


def pipedream(name: str) -> Profile:
    """Return one of PipeDream's profiles."""
    found = read(PIPEDREAM / f"{name}.txt")
    assert isinstance(found, Profile)
    return found


def pipedream_results() -> dict[str, tuple[float, float]]:
    """Return the bottleneck that PipeDream's own optimizer finds at 4 and 8 stages, in seconds."""
    reference = PIPEDREAM / "REFERENCE.md"
    rows = re.finditer(
        r"^\| (\w+) \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \|",
        reference.read_text() if reference.exists() else "",
        re.M,
    )
    return {row[1]: (float(row[2]), float(row[3])) for row in rows}


@dataclass(frozen=True)
class Mix:
    """Devices of several kinds: how many, their speed, and their memory as a share."""

    name: str
    devices: tuple[tuple[int, float, float], ...]

    @property
    def stages(self) -> int:
        """Number of devices, each with a stage."""
        return sum(count for count, _, _ in self.devices)

    def kinds(self, memory_bytes: float) -> tuple[DeviceKind, ...]:
        """Return the devices; ``memory_bytes`` is what a share of one stands for."""
        return tuple(
            DeviceKind(count, speed, share * memory_bytes) for count, speed, share in self.devices
        )


MIXES = (
    Mix("4 fast, 4 slow", ((4, 2.0, 0.9), (4, 1.0, 1.1))),
    Mix("1 fast, 3 slow", ((1, 2.0, 0.9), (3, 1.0, 1.1))),
    Mix("4 different", ((1, 2.0, 0.9), (1, 1.5, 1.0), (1, 1.0, 1.1), (1, 0.75, 1.2))),
)


def pipelined(given: ChainProblem, kinds: tuple[DeviceKind, ...]) -> ChainProblem:
    """Return a workload as a training pipeline under 1F1B on devices whose order is free.

    Stage s holds what S - s micro-batches save.
    """
    stages = sum(kind.count for kind in kinds)
    return ChainProblem(
        num_stages=stages,
        work_s=given.work_s,
        edges=given.edges,
        nets=given.nets,
        links=(Link(s_per_byte=1.0),) * (stages - 1),
        static_bytes=given.static_bytes,
        saved_bytes=tuple(_SAVED_SHARE * size for size in given.static_bytes),
        in_flight=tuple(range(stages, 0, -1)),
        kinds=kinds,
    )


@dataclass(frozen=True)
class Blocks:
    """Blocks of ten operators: residuals, fan-out to queries, keys and values.

    Parameters
    ----------
    work_s
        Seconds of each operator.
    values
        ``(producer, *readers)`` of each value, with what it costs over a cut in seconds.
    """

    work_s: tuple[float, ...]
    values: dict[tuple[int, ...], float]

    def problem(self, stages: int) -> ChainProblem:
        """Return the problem of cutting them into stages."""
        return ChainProblem(
            num_stages=stages,
            work_s=self.work_s,
            edges=tuple(sorted({(pins[0], pin) for pins in self.values for pin in pins[1:]})),
            nets=tuple(Net(pins, cost_s) for pins, cost_s in self.values.items()),
            links=(Link(1.0),) * (stages - 1),
        )

    def profile(self) -> Profile:
        """Return them as measured layers; a second over a cut is a gigabyte."""
        nbytes = {pins: round(cost_s * 1e9) for pins, cost_s in self.values.items()}
        return profile([seconds / 3 for seconds in self.work_s], nbytes)


def transformer(nodes: int, seed: int = 0) -> Blocks:
    """Return a graph with ``nodes`` operators, or up to nine more."""
    rng = random.Random(seed)
    work: list[float] = []
    readers: dict[int, list[int]] = {}

    def add(seconds: float, *inputs: int) -> int:
        for node in inputs:
            readers.setdefault(node, []).append(len(work))
        work.append(seconds)
        return len(work) - 1

    def heavy(scale: float = 1.0) -> float:
        return scale * rng.uniform(0.8, 1.2)

    last = add(1.0)
    while len(work) < nodes:
        norm = add(rng.uniform(0.05, 0.1), last)
        query, key, value = (add(heavy(), norm) for _ in range(3))
        scores = add(heavy(0.4), query, key)
        mixed = add(heavy(0.4), scores, value)
        out = add(heavy(), mixed)
        residual = add(0.02, last, out)
        up = add(heavy(2.0), residual)
        last = add(heavy(2.0), up, residual)
    values = {(node, *after): rng.uniform(0.02, 0.05) for node, after in readers.items()}
    return Blocks(tuple(work), values)
