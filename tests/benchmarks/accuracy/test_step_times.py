"""How well plans predict the step of two processes that train over gloo.

Each round times the layers, the link and a step of every export, one after another, so that
prediction and reality see the same machine. Thresholds are printed, not asserted: they hold on a
machine with two cores and nothing else to do.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from autosplit import graph, planner, profilers
from autosplit.modelspec import load_model
from autosplit.serialize import load
from autosplit.simulate import simulate
from autosplit.tracers import trace
from autosplit.types import Plan, Profile
from tests.benchmarks.accuracy.cutting import export, plans
from tests.benchmarks.accuracy.subjects import reference
from tests.benchmarks.accuracy.tables import share, show, verdict
from tests.functional.processes import torchrun

MODELS = ("gpt", "resnet", "hf llama")
SHARES = (0.25, 0.5, 0.7)
MICROBATCHES = (4, 8, 16)
ROWS = 4
REPETITIONS = int(os.environ.get("AUTOSPLIT_BENCH_STEPS", "8"))
WARM_UP = 2
CLOSE = 0.05
"""Cuts whose steps differ by less may change places."""

pytestmark = [pytest.mark.slow, pytest.mark.hf, pytest.mark.timeout(600)]


def predicted(profile: Profile, plan: Plan, microbatches: int, link: tuple[float, float]) -> float:
    """Return the simulated seconds of a step."""
    bytes_per_s, latency_s = link
    request = replace(
        plan.request,
        microbatches=microbatches,
        link_bytes_per_s=bytes_per_s,
        latency_s=latency_s,
    )
    answer = planner.Task(graph.build(profile), {}).given(request, plan)
    return simulate(answer.cost, answer.model.schedule).step_s


@pytest.mark.parametrize("name", MODELS)
def test_steps_of_two_processes(name: str, tmp_path: Path) -> None:
    ref = reference(name, ROWS)
    traced = trace(load_model(ref))
    options = profilers.ProfileOptions(device="cpu", min_repetitions=2, max_repetitions=2)
    chosen = list(plans(profilers.profile(traced, options, model=ref), SHARES, microbatches=4))
    for number, plan in enumerate(chosen):
        export(plan, traced, tmp_path / str(number))
    asked = {
        "spec": ref.spec,
        "rows": ROWS,
        "cuts": len(chosen),
        "microbatches": MICROBATCHES,
        "repetitions": REPETITIONS,
    }
    worker = Path(__file__).with_name("step_worker.py")
    torchrun(2, worker, str(tmp_path), json.dumps(asked), limit_s=500)
    measured = json.loads((tmp_path / "steps.json").read_text())
    link = np.median(np.array(measured["links"])[WARM_UP:], axis=0)
    rounds = np.array(measured["steps"])[WARM_UP:].reshape(-1, len(chosen), len(MICROBATCHES), 2)
    pipeline, optimizer = np.moveaxis(np.median(rounds, axis=0), -1, 0)
    low, high = np.quantile(rounds[..., 0], (0.25, 0.75), axis=0)
    profile = load(Profile, tmp_path / "profile.json")
    told = np.array(
        [
            [predicted(profile, plan, count, (link[0], link[1])) for count in MICROBATCHES]
            for plan in chosen
        ]
    )
    errors = np.abs(told / pipeline - 1)
    rows = [
        (
            name,
            f"{each:.0%}",
            str(count),
            f"{told[cut, column] * 1e3:.1f} ms",
            f"{pipeline[cut, column] * 1e3:.1f} ms",
            share(errors[cut, column]),
            share((high - low)[cut, column] / pipeline[cut, column]),
            f"{optimizer[cut, column] * 1e3:.1f} ms",
        )
        for cut, each in enumerate(SHARES[: len(chosen)])
        for column, count in enumerate(MICROBATCHES)
    ]
    columns = ("model", "cut at", "M", "predicted", "measured", "error", "spread", "optimizer")
    show(f"Steps of two processes, link {link[0] / 1e9:.2f} GB/s", columns, rows)
    wrong = sum(
        (told[a, column] < told[b, column]) != (pipeline[a, column] < pipeline[b, column])
        for column in range(len(MICROBATCHES))
        for a, b in combinations(range(len(chosen)), 2)
        if abs(pipeline[a, column] / pipeline[b, column] - 1) > CLOSE
    )
    whole = np.abs(told / (pipeline + optimizer) - 1)
    print(
        f"{name}: median error {verdict(float(np.median(errors)), 0.06)}, with the optimizer "
        f"{share(float(np.median(whole)))}; {wrong} pairs of cuts told the wrong way round"
    )
    assert np.isfinite(told).all()
