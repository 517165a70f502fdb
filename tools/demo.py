"""A GPT from model to verified pipeline: profiled, planned, exported, trained and compared.

Two processes with one thread each train the exported stages; one process with one thread
trains the original model on the same micro-batches. Everything is written to ``demo/``.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("demo")
MODEL = "sample_models/gpt.py:build_large"
ROWS, MICROBATCHES, STAGES, STEPS = 8, 16, 2, 8

console = Console(highlight=False)


def main() -> None:
    """Walk from the model to the table."""
    os.chdir(ROOT)
    os.environ["OMP_NUM_THREADS"] = "1"
    # launch.sh takes the python of the path, which may have no torch: take this one.
    os.environ["PYTHON"] = sys.executable
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    profile, plan, pipeline = (
        str(FOLDER / name) for name in ("profile.json", "plan.json", "pipeline")
    )
    autosplit("profile", MODEL, "--batch-size", str(ROWS), "-o", profile)
    autosplit(
        *("plan", profile, "--stages", str(STAGES), "--microbatches", str(MICROBATCHES)),
        *("-o", plan),
    )
    autosplit("export", plan, "-o", pipeline)
    autosplit("verify", pipeline, "--distributed")
    together = trained("together", f"{pipeline}/launch.sh", "train.py", "--threads", "1")
    alone = trained(
        *("alone", sys.executable, "tools/train_alone.py", MODEL),
        *("--microbatch-size", str(ROWS), "--microbatches", str(MICROBATCHES)),
    )
    console.print()
    console.print(table(json.loads(Path(plan).read_text()), verified(pipeline), together, alone))


def autosplit(*arguments: str) -> None:
    """Run a command as a user would, and show it."""
    run([str(Path(sys.executable).with_name("autosplit")), *arguments])


def run(command: list[str]) -> None:
    """Show and run a command; the demo ends where one fails."""
    name = Path(command[0]).name if Path(command[0]).is_absolute() else command[0]
    shown = shlex.join([name, *command[1:]]).replace(str(ROOT), "$PWD")
    console.print(f"\n$ {shown}", style="bold", markup=False, soft_wrap=True)
    sys.stdout.flush()
    if status := subprocess.run(command).returncode:
        raise SystemExit(status)


def trained(name: str, *command: str) -> dict[str, list[float]]:
    """Train, and return the losses and step times that the run reports."""
    report = ROOT / FOLDER / f"{name}.json"
    run([*command, "--steps", str(STEPS), "--report", str(report)])
    record: dict[str, list[float]] = json.loads(report.read_text())
    return record


def verified(pipeline: str) -> dict[str, float]:
    """Return the largest difference of outputs and of gradients from the original model."""
    command = [sys.executable, "-m", "autosplit", "verify", pipeline, "--json", "-q"]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    largest: dict[str, float] = {}
    for check in json.loads(result.stdout)["checks"]:
        for each in check["comparisons"]:
            largest[each["kind"]] = max(largest.get(each["kind"], 0.0), each["largest"])
    return largest


def table(
    plan: dict[str, Any],
    differences: dict[str, float],
    together: dict[str, list[float]],
    alone: dict[str, list[float]],
) -> Table:
    """Return predicted against measured, two processes against one, and what differs."""
    pipeline_s, single_s = (statistics.median(run["step_s"][2:]) for run in (together, alone))
    rows = ROWS * MICROBATCHES
    found = Table(title="What the demo found", title_justify="left", box=box.SIMPLE_HEAD)
    found.add_column("", no_wrap=True)
    for heading in ("one process", f"{STAGES} processes", "ratio"):
        found.add_column(heading, justify="right")
    found.add_row(
        "step, predicted",
        f"{plan['single_s']:.3f} s",
        f"{plan['step_s']:.3f} s",
        f"{plan['single_s'] / plan['step_s']:.2f}×",
    )
    found.add_row(
        "step, measured",
        f"{single_s:.3f} s",
        f"{pipeline_s:.3f} s",
        f"{single_s / pipeline_s:.2f}×",
    )
    found.add_row(
        "throughput, sequences/s",
        f"{rows / single_s:.1f}",
        f"{rows / pipeline_s:.1f}",
        f"{single_s / pipeline_s:.2f}×",
        style="bold",
    )
    found.add_section()
    for kind in ("outputs", "gradients"):
        found.add_row(f"largest difference, {kind}", "", f"{differences.get(kind, 0.0):.1e}", "")
    return found


if __name__ == "__main__":
    main()
