"""Compare a trace with the model itself on the example inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autosplit.errors import TraceError
from autosplit.modelspec.meta import is_on_meta
from autosplit.modelspec.structure import map_tensors, walk
from autosplit.program import TensorSpec
from autosplit.tracers.base import Trace
from autosplit.tracers.fake import FakeModel, fake_input
from autosplit.tracers.frames import failure
from autosplit.tracers.refusals import ModelError
from autosplit.tracers.replay import run_whole

_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass
class _Run:
    """What one forward and backward left behind."""

    outputs: list[torch.Tensor]
    gradients: dict[str, torch.Tensor]
    buffers: dict[str, torch.Tensor]


def check(trace: Trace) -> None:
    """Run model and trace with the same random numbers and compare what they compute.

    Outputs, and in training gradients and buffers, must agree up to rounding. A model on meta
    has no values: what its trace returns is compared with what was recorded, by shapes and
    dtypes.

    Raises
    ------
    TraceError
        Naming the first value that differs.
    """
    model = trace.model
    if is_on_meta(model):
        _check_shapes(trace)
        return

    def eager(args: Any, kwargs: Any) -> list[torch.Tensor]:
        return [tensor for _, tensor in walk(model(*args, **kwargs))]

    def traced(args: Any, kwargs: Any) -> list[torch.Tensor]:
        return run_whole(trace, args, kwargs)

    try:
        first = _run(trace, eager)
    except Exception as error:
        raise failure(error, "the model fails on its example inputs") from error
    try:
        second = _run(trace, traced)
    except Exception as error:
        raise failure(error, "the traced operations fail on the example inputs") from error
    try:
        _compare_runs(first, second)
    except TraceError:
        _require_repeatable(first, _run(trace, eager))
        raise


def _require_repeatable(first: _Run, again: _Run) -> None:
    """Refuse a model that, called again on the same inputs, gives something else."""
    try:
        _compare_runs(first, again)
    except TraceError:
        raise ModelError(
            "the model gives something else each time it is called on the same inputs",
            hint="draw random numbers with torch alone, and keep what changes from call to call "
            "in buffers that are written to in place",
        ) from None


def _compare_runs(first: _Run, second: _Run) -> None:
    if len(first.outputs) != len(second.outputs):
        raise TraceError("the traced model returns another number of tensors")
    for index, (a, b) in enumerate(zip(first.outputs, second.outputs, strict=True)):
        _compare(f"output {index}", a, b)
    _compare_named("gradient", first.gradients, second.gradients)
    _compare_named("buffer", first.buffers, second.buffers)


def _check_shapes(trace: Trace) -> None:
    """Replay on fake tensors and compare the outputs with what was recorded.

    Fake tensors are on the device that the trace speaks of; on meta itself much does not run
    (autocast, operations that mix devices).
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(_: Any, tensor: torch.Tensor) -> torch.Tensor:
        return fake_input(mode, tensor, {})

    args, kwargs = map_tensors(trace.args, fake), map_tensors(trace.kwargs, fake)
    program = trace.program
    try:
        with FakeModel(trace.model, mode).in_place(), torch.random.fork_rng(devices=[]), mode:
            outputs = run_whole(trace, args, kwargs)
    except Exception as error:
        raise failure(error, "the traced operations fail on fake tensors") from error
    for name, found in zip(program.output_tree.values(), outputs, strict=True):
        spec = program.node[name].value
        assert isinstance(spec, TensorSpec)
        shape = tuple(program.evaluate(size) for size in spec.shape)
        if shape != tuple(found.shape) or spec.dtype != str(found.dtype).removeprefix("torch."):
            raise TraceError(
                f"{name} has another shape when replayed", cause=f"{shape} and {found.shape}"
            )


def _run(trace: Trace, forward: Callable[[Any, Any], list[torch.Tensor]]) -> _Run:
    args = map_tensors(trace.args, lambda _, tensor: tensor.detach().clone())
    kwargs = map_tensors(trace.kwargs, lambda _, tensor: tensor.detach().clone())
    model = trace.model
    cuda = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with _kept(model), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(0)
        if not model.training:
            with torch.no_grad():
                outputs = forward(args, kwargs)
            return _Run([output.detach() for output in outputs], {}, {})
        outputs = forward(args, kwargs)
        gradients = _gradients(model, outputs)
        buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
        return _Run([output.detach() for output in outputs], gradients, buffers)


def _gradients(model: nn.Module, outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return gradients of a weighted sum of the outputs, so that no two values can swap."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    roots = [out for out in outputs if out.requires_grad and out.numel()]
    if not named or not roots:
        return {}
    weights = [
        torch.linspace(0.5, 1.5, out.numel(), dtype=torch.float64, device=out.device)
        .to(out.dtype)
        .view(out.shape)
        for out in roots
    ]
    before = [parameter.grad for _, parameter in named]
    try:
        for _, parameter in named:
            parameter.grad = None
        torch.autograd.backward(roots, weights)
        return {name: p.grad for name, p in named if p.grad is not None}
    finally:
        for (_, parameter), gradient in zip(named, before, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Put the values of all buffers back at the end."""
    before = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def _compare_named(
    kind: str, first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]
) -> None:
    for name in (*first, *(name for name in second if name not in first)):
        if name not in first or name not in second:
            where = "the model" if name in first else "the trace"
            raise TraceError(f"only {where} has a {kind} for {name}")
        _compare(f"{kind} of {name}", first[name], second[name])


def _compare(what: str, expected: torch.Tensor, found: torch.Tensor) -> None:
    if expected.shape != found.shape or expected.dtype != found.dtype:
        raise TraceError(
            f"{what} differs between model and trace",
            cause=f"{tuple(expected.shape)} {expected.dtype} against "
            f"{tuple(found.shape)} {found.dtype}",
        )
    if expected.is_meta or torch.equal(expected, found):
        return
    if not torch.allclose(
        expected,
        found,
        rtol=_TOLERANCE.get(expected.dtype, 0.0),
        atol=_tolerance(expected),
        equal_nan=True,
    ):
        difference = (expected - found).abs().max().item() if expected.dtype != torch.bool else 1
        raise TraceError(
            f"{what} differs between model and trace", cause=f"largest difference {difference:.3g}"
        )


def _tolerance(tensor: torch.Tensor) -> float:
    """Return rounding noise for values as large as the largest in ``tensor``."""
    scale = float(tensor.abs().nan_to_num(0, 0, 0).max()) if tensor.is_floating_point() else 0.0
    return _TOLERANCE.get(tensor.dtype, 0.0) * scale
