"""Bring a model into the state in which it is measured, and leave it as it was."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from autosplit.errors import AutosplitError, UsageError
from autosplit.modelspec.structure import walk_inputs
from autosplit.profilers.base import ProfileOptions
from autosplit.profilers.clocks import Clock
from autosplit.program import Program
from autosplit.tracers.base import Trace
from autosplit.types import DeviceInfo

AutocastRegion: TypeAlias = Callable[[], AbstractContextManager[Any]]


def choose_device(name: str) -> torch.device:
    """Return the device meant by an option.

    Raises
    ------
    UsageError
        If there is no such device here.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"unknown device {name!r}", hint="try cpu, cuda or cuda:1") from None
    if device.type not in ("cpu", "cuda"):
        raise UsageError(f"cannot measure on {name!r}", hint="try cpu, cuda or cuda:1")
    if device.type == "cuda":
        count = torch.cuda.device_count()
        index = device.index if device.index is not None else 0
        if index >= count:
            there = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
            raise UsageError(
                f"there is no device {name!r}",
                cause=f"torch sees {count} GPUs: {there}" if count else "torch sees no GPU",
                hint="measure on one that is there, or with --device cpu; --analytic models "
                "times of devices that are not",
            )
        return torch.device("cuda", index)
    return device


def refuse_threads(count: int) -> None:
    """Refuse more threads than there are processors: they would time each other's waiting.

    Raises
    ------
    UsageError
        Naming how many there are.
    """
    there = os.cpu_count()
    if there is not None and count > there:
        raise UsageError(
            f"cannot measure with {count} threads",
            cause=f"this machine has {there} processors",
            hint=f"take --threads {there} or fewer",
        )


def describe(device: torch.device, options: ProfileOptions, clock: Clock) -> DeviceInfo:
    """Return what a profile says of the device."""
    return DeviceInfo(
        kind=device.type,
        name=device_name(device),
        threads=options.threads,
        torch_version=str(torch.__version__),
        clock=clock.kind,
        compiled=options.compile,
    )


def autocast_region(program: Program, device: torch.device) -> AutocastRegion:
    """Return what makes one region of autocast of a pass, as a model's forward is one.

    Weights are cast once in a region, and the casts are forgotten at its end. The region around
    a pass casts nothing itself: layers open those of their own within.
    """
    if any(node.ambient.autocast for node in program.operations):
        return lambda: torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext


def device_name(device: torch.device) -> str:
    """Return the name of its hardware."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@contextmanager
def prepared(
    trace: Trace, device: torch.device, *, threads: int, inference: bool
) -> Iterator[None]:
    """Set device, threads, mode and seed; on the way out restore them and all state.

    Parameters and their gradients, buffers, the modes of all modules, the number of threads,
    the random state and the garbage collector are afterwards as they were.
    """
    with ExitStack() as stack:
        stack.enter_context(_threads(threads))
        if device.type == "cuda":
            stack.enter_context(torch.cuda.device(device))
        stack.enter_context(torch.random.fork_rng([device] if device.type == "cuda" else []))
        torch.manual_seed(0)
        stack.enter_context(_state_restored(trace))
        stack.enter_context(_moved(trace.model, device))
        if inference:
            stack.enter_context(_evaluating(trace.model))
        stack.enter_context(_no_collection())
        yield


class OutOfMemoryError(AutosplitError):
    """The memory of a device does not hold what is measured."""


@contextmanager
def out_of_memory_explained(device: torch.device, what: Callable[[], str]) -> Iterator[None]:
    """Turn torch's errors into one that names ``what()`` did not fit, and free the memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).strip().split("\n")[0]
        # On the CPU torch raises a plain RuntimeError that says so.
        told = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not told and "can't allocate memory" not in text:
            raise
        # The stack of the error holds the tensors that fill the memory.
        error.__traceback__ = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
        raise OutOfMemoryError(
            f"the memory of {device} does not hold {what()}",
            cause=text,
            hint="lower --batch-size, or measure one layer of each structure with --on-meta",
        ) from None


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _state_restored(trace: Trace) -> Iterator[None]:
    """Set gradients aside and copy what the model writes to while it runs."""
    gradients = [(parameter, parameter.grad) for parameter in trace.model.parameters()]
    written = {name for node in trace.program.nodes for name in node.writes_state}
    named = {**dict(trace.model.named_parameters()), **dict(trace.model.named_buffers())}
    changing = {
        name: tensor
        for name, tensor in named.items()
        if not tensor.is_meta and (name in written or not isinstance(tensor, nn.Parameter))
    }
    copies = {name: tensor.detach().clone() for name, tensor in changing.items()}
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        now = {**dict(trace.model.named_parameters()), **dict(trace.model.named_buffers())}
        with torch.no_grad():
            for name, copy in copies.items():
                if not torch.equal(now[name], copy):
                    now[name].copy_(copy)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def _moved(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Have the model on ``device``, and back where it was afterwards."""
    here = next((tensor.device for tensor in model.state_dict().values()), device)
    if here == device or here.type == "meta":
        yield
        return
    model.to(device)
    try:
        yield
    finally:
        for parameter in model.parameters():
            parameter.grad = None
        model.to(here)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def input_tensors(trace: Trace) -> dict[str, Tensor]:
    """Return the tensors of the example inputs by their names in the program."""
    found = walk_inputs(trace.args, trace.kwargs)
    return {
        spec.name: tensor.detach()
        for spec, (_, tensor) in zip(trace.program.inputs, found, strict=True)
    }


def state_tensors(trace: Trace, device: torch.device) -> dict[str, Tensor]:
    """Return parameters, buffers and constants by their first name, constants on ``device``."""
    named = {name: constant.to(device) for name, constant in trace.constants.items()}
    named.update(trace.model.named_buffers())
    named.update(trace.model.named_parameters())
    return {spec.fqn: named[spec.fqn] for spec in trace.program.states}
