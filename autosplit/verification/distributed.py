"""The stages in processes of their own, with the folder's runtime, against the original model."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from safetensors.torch import load_file
from torch import Tensor

from autosplit.errors import VerificationError
from autosplit.modelspec import LoadedModel
from autosplit.types import BatchCheck, Comparison
from autosplit.verification.chain import output_places, read_inputs
from autosplit.verification.checkpoint import load_merged
from autosplit.verification.compare import Kind, compare
from autosplit.verification.determinism import fixed_randomness
from autosplit.verification.folder import Export
from autosplit.verification.local import evaluating
from autosplit.verification.reference import (
    MicroBatch,
    Run,
    call_original,
    first_names,
    keep_outputs,
    parameters,
    train_reference,
)

Pairs: TypeAlias = dict[str, tuple[Tensor | None, Tensor | None]]
"""Tensors of the original model and of the export, by what to call them."""

_LIMIT_S = 600.0


@dataclass(frozen=True)
class Step:
    """One run of the pipeline from the exported weights: a training step, or inference."""

    mode: Literal["train", "eval"]
    schedule: str
    batch_size: int | None
    batches: list[MicroBatch]


def check_processes(export: Export, loaded: LoadedModel, steps: Sequence[Step]) -> list[BatchCheck]:
    """Run all steps in one launch, each from the exported weights, and compare each.

    Raises
    ------
    VerificationError
        If a process fails, or does not end.
    """
    with tempfile.TemporaryDirectory(prefix="autosplit-verify-") as folder:
        _launch(export, steps, Path(folder))
        found = [_collect(Path(folder), number) for number in range(len(steps))]
    checks = []
    for step, tensors in zip(steps, found, strict=True):
        load_merged(export, loaded.model)
        against = _compare_training if step.mode == "train" else _compare_inference
        comparisons = tuple(against(export, loaded, step, tensors))
        checks.append(
            BatchCheck(step.mode, step.batch_size, len(step.batches), comparisons, step.schedule)
        )
    return checks


def _compare_training(
    export: Export, loaded: LoadedModel, step: Step, found: dict[str, Tensor]
) -> list[Comparison]:
    modes = [(module, module.training) for module in loaded.model.modules()]
    loaded.model.train()
    reference = train_reference(loaded, step.batches)
    for module, training in modes:
        module.training = training
    first = first_names(parameters(loaded.model))
    gradients: Pairs = {}
    buffers: Pairs = {}
    for index, stage in enumerate(export.stages):
        for name, _ in stage.named_parameters():
            pair = (
                reference.gradients.get(first.get(name, name)),
                found.get(f"gradient:{index}:{name}"),
            )
            gradients[f"{name} on stage {index}"] = pair
        for name, _ in stage.named_buffers():
            if name in reference.buffers:
                pair = reference.buffers[name], found.get(f"buffer:{index}:{name}")
                buffers[f"{name} on stage {index}"] = pair
    losses: Pairs = {
        name: (loss, found.get(f"loss:{index}"))
        for index, (name, loss) in enumerate(reference.losses.items())
    }
    return [
        _compare("loss", losses),
        _compare("gradients", gradients),
        _compare("buffers", buffers),
    ]


def _compare(kind: Kind, pairs: Pairs) -> Comparison:
    return compare(
        kind,
        {name: original for name, (original, _) in pairs.items()},
        {name: export for name, (_, export) in pairs.items()},
    )


def _compare_inference(
    export: Export, loaded: LoadedModel, step: Step, found: dict[str, Tensor]
) -> list[Comparison]:
    expected, received = Run(), Run()
    with evaluating(loaded.model), torch.no_grad(), fixed_randomness():
        for index, batch in enumerate(step.batches):
            keep_outputs(expected, index, call_original(loaded.model, batch))
            for path, name in output_places(export.routing):
                keep_outputs(received, index, found.get(f"output:{index}:{name}"), path)
    return [compare("outputs", expected.outputs, received.outputs)]


def _launch(export: Export, steps: Sequence[Step], folder: Path) -> None:
    """Write the request into ``folder`` and run one process per rank on it."""
    request = folder / "request.pt"
    data = [
        {
            "train": step.mode == "train",
            "schedule": step.schedule,
            "microbatches": [_as_data(export, batch, step) for batch in step.batches],
        }
        for step in steps
    ]
    torch.save({"folder": str(export.folder.resolve()), "steps": data}, request)
    ranks = max(stage.rank for stage in export.plan.stages) + 1
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", "-m", "autosplit.verification.rank", str(request)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=_LIMIT_S)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise VerificationError(
                    f"the processes of {export.folder} did not end within {_LIMIT_S:g} s"
                ) from None
            raise
    if process.returncode:
        raise VerificationError(
            f"the processes of {export.folder} fail",
            cause=_last_error(output),
            hint="run launch.sh in the folder to see more",
        )


def _as_data(export: Export, batch: MicroBatch, step: Step) -> dict[str, object]:
    inputs = read_inputs(export.routing, batch)
    return {"inputs": inputs, "targets": batch.targets, "rows": step.batch_size or 1}


def _collect(folder: Path, number: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path in sorted(folder.glob(f"step_{number}_rank_*.safetensors")):
        found.update(load_file(path))
    return found


def _last_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if "Error" in line]
    own = [line for line in lines if "ChildFailedError" not in line]
    return (own or lines or output.splitlines() or ["no output"])[-1 if not own else 0]
