"""The steps of a verification: read, load, run, compare."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from torch import nn

from autosplit.errors import UsageError
from autosplit.modelspec import LoadedModel, load_model
from autosplit.modelspec.structure import walk_inputs
from autosplit.schedules import Schedule, fitting
from autosplit.stages.types import Routing
from autosplit.types import BatchCheck, VerificationReport
from autosplit.verification.checkpoint import load_merged
from autosplit.verification.distributed import Step, check_processes
from autosplit.verification.folder import Export, read_export
from autosplit.verification.local import check_inference, check_training
from autosplit.verification.reference import micro_batches

Mode: TypeAlias = Literal["train", "eval"]

MICROBATCHES = 2
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}
"""Largest difference that passes, by the coarsest dtype among the model's parameters."""


def verify(
    folder: str | os.PathLike[str],
    *,
    distributed: bool = False,
    schedules: Sequence[str] = (),
    tolerance: float | None = None,
    batch_sizes: Sequence[int] | None = None,
) -> VerificationReport:
    """Compare an export with the model it was made from.

    The original model is built again from the plan's spec and given the export's merged
    weights. Both run the same micro-batches: forward and backward as built, forward alone in
    eval mode.

    Parameters
    ----------
    folder
        The export.
    distributed
        Run the stages in processes of their own too, with the folder's runtime under torchrun.
    schedules
        Schedules of these processes; "all" for every one that runs on the ranks of the stages.
        By default that of the plan.
    tolerance
        Largest difference that passes; by default 1e-5 for float32 models.
    batch_sizes
        Rows of a micro-batch to check; by default those of the plan and one more.

    Raises
    ------
    DataError
        If the folder is not a complete export.
    UsageError
        If the model cannot be built again, or a batch size or schedule cannot be run.
    """
    export = read_export(Path(folder))
    orders = _orders(export, schedules)
    loaded = load_model(export.plan.model)
    checkpoint = load_merged(export, loaded.model)
    modes, skipped = _modes(export)
    sizes, fixed = _batch_sizes(export.routing, loaded, batch_sizes)
    skipped += fixed
    checks: list[BatchCheck] = []
    for size in list(sizes):
        try:
            checks += _local_checks(export, loaded, size, modes)
        except UsageError as error:
            if batch_sizes is not None or size == sizes[0]:
                raise
            sizes.remove(size)
            skipped.append(f"{size} rows: {error.message} ({error.cause})")
    if distributed:
        checks += check_processes(export, loaded, list(_steps(orders, loaded, sizes, modes)))
        if export.plan.request.replicas > 1:
            skipped.append(f"{export.plan.request.replicas} replicas: one of them was run")
    return VerificationReport(
        str(folder),
        distributed,
        default_tolerance(loaded.model) if tolerance is None else tolerance,
        checkpoint,
        tuple(checks),
        tuple(skipped),
    )


def default_tolerance(model: nn.Module) -> float:
    """Return the tolerance that fits the model's coarsest floating-point dtype."""
    names = {str(each.dtype).removeprefix("torch.") for each in model.parameters()}
    return max((TOLERANCE[name] for name in names if name in TOLERANCE), default=1e-5)


def _local_checks(
    export: Export, loaded: LoadedModel, size: int | None, modes: Sequence[Mode]
) -> list[BatchCheck]:
    batches = micro_batches(loaded, size, MICROBATCHES)
    check = {"train": check_training, "eval": check_inference}
    return [
        BatchCheck(mode, size, len(batches), tuple(check[mode](export, loaded, batches)))
        for mode in modes
    ]


def _orders(export: Export, asked: Sequence[str]) -> tuple[Schedule, ...]:
    """Return the schedules to run, each with one micro-batch more than there are stages."""
    ranks = [stage.rank for stage in export.plan.stages]
    known = {schedule.name: schedule for schedule in fitting(ranks, len(ranks) + 1)}
    if "all" in asked:
        return tuple(known.values())
    names = tuple(dict.fromkeys(asked)) or (export.plan.request.schedule,)
    for name in names:
        if name not in known:
            raise UsageError(
                f"schedule {name} does not run stages on ranks {', '.join(map(str, ranks))}",
                hint=f"these do: {', '.join(known)}",
            )
    return tuple(known[name] for name in names)


def _steps(
    orders: Sequence[Schedule],
    loaded: LoadedModel,
    sizes: Sequence[int | None],
    modes: Sequence[Mode],
) -> Iterator[Step]:
    """Yield a training step and an inference at each size, under each schedule."""
    trainable = any(each.requires_grad for each in loaded.model.parameters())
    for size in sizes:
        for schedule in orders:
            batches = micro_batches(loaded, size, schedule.microbatches)
            for mode in modes:
                if mode == "eval" or trainable:
                    yield Step(mode, schedule.name, size, batches)


def _modes(export: Export) -> tuple[tuple[Mode, ...], list[str]]:
    """Return the modes in which the stages promise to be the model, and why not the others."""
    if export.plan.model.inference:
        return ("eval",), ["train mode: the plan is for inference"]
    mode = export.routing.mode
    if mode is None:
        return ("train", "eval"), []
    other = "eval" if mode == "train" else "train"
    return (mode,), [f"{other} mode: the forward does other operations there than in {mode} mode"]


def _batch_sizes(
    routing: Routing, loaded: LoadedModel, asked: Sequence[int] | None
) -> tuple[list[int | None], list[str]]:
    """Return the rows per micro-batch to check, and why others are not."""
    traced = dict(routing.symbols).get("batch")
    if traced is None:
        sizes = [_rows(loaded)]
        odd = [size for size in asked or () if size != sizes[0]]
        if odd:
            raise UsageError(f"the export runs with {sizes[0]} rows only, not {odd[0]}")
        return sizes, [f"other batch sizes: the trace fixed the batch at {sizes[0]} rows"]
    if asked is not None and any(size < 1 for size in asked):
        raise UsageError("a batch needs at least one row")
    return list(asked or (traced, traced + 1)), []


def _rows(loaded: LoadedModel) -> int | None:
    """Return the rows of the example inputs; None when they have no batch dimension."""
    tensors = (tensor for _, tensor in walk_inputs(loaded.args, loaded.kwargs))
    pairs = zip(tensors, loaded.batch_dims, strict=True)
    return next((tensor.shape[dim] for tensor, dim in pairs if dim is not None), None)
