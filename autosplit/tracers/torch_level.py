"""The primary tracer: run the real forward on fake tensors and record its torch calls.

A ``TorchFunctionMode`` sees every outermost torch call and a replaced ``Module.__call__`` every
module call; both are written into a ``torch.fx.Graph``. Sizes are symbols, so one trace serves
every batch size; no memory is allocated, so a model on meta can be traced as well.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function

from autosplit.errors import AutosplitError, TraceError
from autosplit.modelspec import LoadedModel
from autosplit.modelspec.structure import Path, map_tensors, walk
from autosplit.program import ORIGINAL, Constructor
from autosplit.tracers.base import TRACERS, Trace
from autosplit.tracers.fake import FakeModel, fake_input
from autosplit.tracers.frames import failure
from autosplit.tracers.interfaces import interfaces, noted
from autosplit.tracers.lower import Lowering, lower
from autosplit.tracers.own_backward import custom_apply, recorded_with_own
from autosplit.tracers.recorder import Recorder
from autosplit.tracers.recording import Recording
from autosplit.tracers.switches import Different, merge_interfaces, merge_modes
from autosplit.tracers.symbolic import SizeEnv


@dataclass
class Recorded:
    """One run of the forward on fake tensors.

    ``reads_training`` tells whether code outside of leaf modules looked at ``self.training``,
    ``checkpointed`` what ran under ``torch.utils.checkpoint``.
    """

    recording: Recording
    fake: FakeModel
    env: SizeEnv
    reads_training: bool
    hints: dict[str, int]
    checkpointed: tuple[str, ...] = ()

    def notes(self) -> Iterator[str]:
        """Yield what the stages do unlike the model's source."""
        if self.fake.counted:
            yield (
                f"the forward changes {_listed(self.fake.counted)}; the stages keep what the first "
                "call found there: what results depend on belongs into a buffer"
            )
        if whole := tuple(n for n, c in self.fake.constructors.items() if c.qualified == ORIGINAL):
            yield (
                f"{_listed(whole)} {'has' if len(whole) == 1 else 'have'} a backward of "
                f"{'its' if len(whole) == 1 else 'their'} own: stages run such modules as they are"
            )
        if self.checkpointed:
            yield (
                f"the model recomputes {_listed(self.checkpointed)} in backward "
                "(torch.utils.checkpoint); the stages do not unless planned with --recompute"
            )


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


@TRACERS.register("torch_level")
def trace_symbolic(loaded: LoadedModel) -> Trace:
    """Record with the sizes in ``loaded.symbols`` free; those the forward pins are given up."""
    symbols = dict(loaded.symbols)
    warnings: list[str] = []
    while True:
        recorded, fixed = _record_free(loaded, symbols)
        if not fixed:
            warnings += (
                f"the forward branches on a size; the stages hold where {condition}"
                for condition in recorded.env.branches()
            )
            trace = _finish(loaded, recorded, symbols, tuple(warnings))
            return _with_switches(loaded, trace, recorded, symbols)
        for name in fixed:
            warnings.append(f"size {name!r} is fixed: the forward compares or unrolls it")
        symbols = {key: name for key, name in symbols.items() if name not in fixed}


def _record_free(
    loaded: LoadedModel, symbols: Mapping[tuple[int, int], str]
) -> tuple[Recorded, tuple[str, ...]]:
    """Record, and return which sizes the forward pins down even at a size unlike any other.

    A size that happens to equal a width of the model looks pinned although it is not.
    """
    hints = _hints(loaded, symbols)
    recorded = record(loaded, symbols, hints)
    fixed = recorded.env.fixed()
    if not fixed:
        return recorded, ()
    for name in fixed:
        hints[name] = _unlike(hints[name], {*hints.values(), *_widths(loaded.model)})
    try:
        again = record(loaded, symbols, hints)
    except TraceError:
        return recorded, fixed
    return again, again.env.fixed()


def _unlike(size: int, taken: set[int]) -> int:
    """Return the prime nearest below ``size``, or else above it, that is not taken."""
    below, above = range(size - 1, 4, -1), itertools.count(max(size, 5))
    primes = (n for n in itertools.chain(below, above) if all(n % d for d in range(2, n)))
    return next(n for n in primes if n not in taken)


def _widths(model: nn.Module) -> set[int]:
    return {size for parameter in model.parameters() for size in parameter.shape}


@TRACERS.register("torch_level_static")
def trace_static(loaded: LoadedModel) -> Trace:
    """Record with every size as in the example inputs."""
    recorded = record(loaded, {}, {})
    warning = "every size is fixed to that of the example inputs"
    trace = _finish(loaded, recorded, {}, (warning,) if loaded.symbols else ())
    return _with_switches(loaded, trace, recorded, {})


def _with_switches(
    loaded: LoadedModel,
    trace: Trace,
    recorded: Recorded,
    symbols: Mapping[tuple[int, int], str],
) -> Trace:
    """Return the trace with constants that follow ``self.training`` marked as such.

    A second recording in the other mode tells them; it is made only if code of the model
    looked at ``self.training``.
    """
    if not recorded.reads_training:
        return trace
    program = trace.program
    try:
        with _other_mode(loaded.model):
            other = record(loaded, symbols, recorded.hints, sketch=True)
        lowering = Lowering(other.recording, other.env.expression)
        switched = merge_modes(program.nodes, lowering.nodes(), program.training, recorded.hints)
    except (TraceError, Different) as error:
        mode = "train()" if program.training else "eval()"
        place = error.location if isinstance(error, Different) else error.cause
        note = f"the forward does other operations in train() than in eval() (first at {place}): "
        warnings = (*program.warnings, f"{note}the stages keep those of {mode}")
        return replace(trace, program=replace(program, mode_bound=True, warnings=warnings))
    merged = tuple(
        replace(node, args=found.args, kwargs=found.kwargs, random=found.random)
        if (found := switched.get(node.name))
        else node
        for node in program.nodes
    )
    calls = merge_interfaces(
        trace.interfaces,
        interfaces(other.recording, lowering.argument),
        program.training,
        recorded.hints,
    )
    return replace(trace, program=replace(program, nodes=merged), interfaces=calls)


@contextlib.contextmanager
def _other_mode(model: nn.Module) -> Iterator[None]:
    before = [(module, module.training) for module in model.modules()]
    try:
        model.train(not model.training)
        yield
    finally:
        for module, training in before:
            module.training = training


def record(
    loaded: LoadedModel,
    symbols: Mapping[tuple[int, int], str],
    hints: Mapping[str, int],
    *,
    sketch: bool = False,
) -> Recorded:
    """Run the forward once on fake inputs and return what it did.

    Parameters
    ----------
    symbols
        Names of the free sizes, by (tensor input, dimension).
    hints
        Size for which each name stands while tracing.
    sketch
        Take the hints as they are, as numbers, and leave out what only readers need: several
        times as fast.
    """
    run = partial(_record, loaded, symbols, hints, sketch)
    found: Recorded = recorded_with_own(run, loaded.model)
    return found


def _record(
    loaded: LoadedModel,
    symbols: Mapping[tuple[int, int], str],
    hints: Mapping[str, int],
    sketch: bool,
    whole: Mapping[str, Constructor],
) -> Recorded:
    recorder: Recorder | None = None

    def refuse() -> NoReturn:
        assert recorder is not None
        recorder.refuse_value()

    env = SizeEnv({} if sketch else hints, refuse)
    sizes: Mapping[str, int | torch.SymInt] = hints if sketch else env.sizes
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    # Keys of symbolic shapes cost more than they save: without the cache it is twice as fast.
    mode.cache_enabled = False
    fake = FakeModel(loaded.model, mode, whole)
    recording = Recording()
    recorder = Recorder(recording, fake, read_frames=not sketch)
    args, kwargs = _fake_inputs(loaded, recorder, mode, sizes, symbols)
    with fake.in_place(), _watching(recorder):
        try:
            # Without the Python dispatcher, composite kernels (pad, interpolate, LSTM) ask for
            # sizes as numbers and so pin them.
            with torch.random.fork_rng(devices=[]), enable_python_dispatcher(), recorder, mode:
                recording.output = loaded.model(*args, **kwargs)
            results = [recorder.node_of(value) for _, value in walk(recording.output)]
        except AutosplitError:
            raise
        except Exception as error:
            raise failure(error, "the forward cannot be traced") from error
        finally:
            recorder.finish()
    recording.graph.output(results)
    return Recorded(
        recording, fake, env, recorder.training_was_read, dict(hints), recorder.checkpointed
    )


def _finish(
    loaded: LoadedModel,
    recorded: Recorded,
    symbols: Mapping[tuple[int, int], str],
    warnings: tuple[str, ...],
) -> Trace:
    recording = recorded.recording
    program = lower(
        loaded,
        recording,
        recorded.env.expression,
        symbols,
        tracer="torch_level",
        leaves=recorded.fake.constructors,
        warnings=(*warnings, *recorded.notes()),
    )
    lowering = Lowering(recording, recorded.env.expression)
    return Trace(
        loaded.model,
        loaded.args,
        loaded.kwargs,
        recording.graph,
        program,
        recording.constants,
        interfaces(recording, lowering.argument),
    )


def _hints(loaded: LoadedModel, symbols: Mapping[tuple[int, int], str]) -> dict[str, int]:
    """Return a size per symbol: that of the example, but never 0 or 1 and never twice the same.

    torch treats 0 and 1 as special and would take two equal sizes for the same one.
    """
    tensors = [tensor for _, tensor in walk((loaded.args, loaded.kwargs))]
    hints: dict[str, int] = {}
    for (index, dim), name in sorted(symbols.items()):
        size = max(tensors[index].shape[dim], 2)
        while name not in hints and size in hints.values():
            size += 1
        hints.setdefault(name, size)
    return hints


def _fake_inputs(
    loaded: LoadedModel,
    recorder: Recorder,
    mode: FakeTensorMode,
    sizes: Mapping[str, int | torch.SymInt],
    symbols: Mapping[tuple[int, int], str],
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    parameters = list(inspect.signature(loaded.model.forward).parameters)
    count = iter(range(len(loaded.batch_dims)))

    def change(path: Path, tensor: torch.Tensor) -> torch.Tensor:
        index = next(count)
        free = {dim: sizes[name] for (i, dim), name in symbols.items() if i == index}
        fake = fake_input(mode, tensor, free)
        recorder.add_input(_input_name(path, parameters), fake)
        return fake

    args = map_tensors(loaded.args, change, ("args",))
    kwargs = map_tensors(loaded.kwargs, change, ("kwargs",))
    return args, kwargs


def _input_name(path: Path, parameters: list[str]) -> str:
    """Return a name for an input: its parameter of forward, and its place inside that."""
    place = path[1]
    if isinstance(place, int):
        place = parameters[place] if place < len(parameters) else f"arg_{place}"
    name = "_".join(str(part) for part in (place, *path[2:]))
    return re.sub(r"\W", "_", name)


@contextlib.contextmanager
def _watching(recorder: Recorder) -> Iterator[None]:
    """Let the recorder see module calls and reads of ``self.training``; fast paths are off.

    The fast paths of nn.Transformer replace layers by one fused call in eval mode.
    """
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run = partial(recorder.call_module, original, module, args, kwargs)
        return noted(recorder, module, args, kwargs, run)

    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    apply = Function.__dict__["apply"]
    nn.Module.__call__ = call  # type: ignore[method-assign]
    Function.apply = custom_apply(recorder)  # type: ignore[method-assign]
    nn.Module.training = _TrainingFlag(recorder)  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]
        Function.apply = apply  # type: ignore[method-assign]
        del nn.Module.training
        torch.backends.mha.set_fastpath_enabled(fast)


class _TrainingFlag:
    """``Module.training`` as before, noting when the model's own code reads it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __get__(self, module: nn.Module | None, owner: type) -> Any:
        if module is None:
            return self
        if not self._recorder.quiet:
            self._recorder.training_was_read = True
        return vars(module)["training"]

    def __set__(self, module: nn.Module, value: bool) -> None:
        vars(module)["training"] = value
