"""The stages in one process against the original model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from autosplit.modelspec import LoadedModel
from autosplit.types import Comparison
from autosplit.verification.chain import gradients, like, run_chain
from autosplit.verification.compare import Named, compare
from autosplit.verification.determinism import fixed_randomness
from autosplit.verification.folder import Export
from autosplit.verification.reference import (
    MicroBatch,
    Run,
    buffers,
    call_original,
    keep_outputs,
    run_training,
    train_reference,
)


def check_training(
    export: Export, loaded: LoadedModel, batches: list[MicroBatch]
) -> list[Comparison]:
    """Compare outputs, loss, gradients and buffers of one training step.

    Model and stages start from the same state and end in the same, unless there is a fault.
    """
    copy_modes(loaded.model, export.stages)
    reference = train_reference(loaded, batches)
    run = _train_stages(export, loaded, batches, reference)
    return [
        compare("outputs", reference.outputs, run.outputs),
        compare("loss", reference.losses, run.losses),
        compare("gradients", reference.gradients, run.gradients),
        compare("buffers", *_paired_buffers(export.stages, reference.buffers)),
    ]


def check_inference(
    export: Export, loaded: LoadedModel, batches: list[MicroBatch]
) -> list[Comparison]:
    """Compare outputs in eval mode, without gradients."""
    expected, found = Run(), Run()
    with evaluating(loaded.model, *export.stages), torch.no_grad(), fixed_randomness():
        for index, batch in enumerate(batches):
            output = call_original(loaded.model, batch)
            keep_outputs(expected, index, output)
            keep_outputs(
                found, index, like(output, run_chain(export.stages, export.routing, batch))
            )
    return [compare("outputs", expected.outputs, found.outputs)]


def _train_stages(
    export: Export, loaded: LoadedModel, batches: list[MicroBatch], reference: Run
) -> Run:
    stages = export.stages
    structures = iter(reference.structures)

    def call(batch: MicroBatch) -> Any:
        return like(next(structures), run_chain(stages, export.routing, batch))

    for stage in stages:
        stage.zero_grad(set_to_none=True)
    with fixed_randomness():
        run = run_training(loaded, batches, call)
    run.gradients = gradients(stages, loaded.model)
    return run


def copy_modes(model: nn.Module, stages: list[nn.Module]) -> None:
    """Put every module of the stages into the mode that it has in the model."""
    modes = {name: module.training for name, module in model.named_modules(remove_duplicate=False)}
    for stage in stages:
        for name, module in stage.named_modules():
            module.training = modes.get(name, model.training)


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into eval mode inside the block, and back into their own mode after it."""
    modes = [(each, each.training) for module in modules for each in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training


def _paired_buffers(stages: list[nn.Module], reference: dict[str, Tensor]) -> tuple[Named, Named]:
    """Return the buffers of the model and of the stages under one set of names.

    Every copy counts; a buffer of the model that nothing uses and no checkpoint holds may be
    absent from the stages, and constants captured by a stage are no buffers of the model.
    """
    expected: dict[str, Tensor | None] = {}
    found: dict[str, Tensor | None] = {}
    for index, stage in enumerate(stages):
        for name, tensor in buffers(stage).items():
            if name in reference:
                expected[f"{name} of stage {index}"] = reference[name]
                found[f"{name} of stage {index}"] = tensor
    return expected, found
