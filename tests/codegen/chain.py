"""Runs emitted stages one after the other and compares them with the model they came from."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from autosplit import stages
from autosplit.codegen import CodegenOptions, StageSource, generate
from autosplit.modelspec import LoadedModel, load_model
from autosplit.modelspec.inputs import resize_batch
from autosplit.modelspec.structure import walk, walk_inputs
from autosplit.program import Program
from autosplit.stages import Routing, StageSpec
from autosplit.tracers import Trace, trace
from autosplit.types import ModelRef

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Chain:
    """A traced model and its emitted stages."""

    loaded: LoadedModel
    trace: Trace
    specs: tuple[StageSpec, ...]
    routing: Routing
    sources: tuple[StageSource, ...]
    stages: list[nn.Module] = field(default_factory=list)

    @property
    def program(self) -> Program:
        return self.trace.program

    def load(self, model: nn.Module) -> None:
        """Build the stages and fill them from a model, strictly."""
        state = model.state_dict()
        kept = dict(model.named_buffers(remove_duplicate=False)) | self.trace.constants
        self.stages = []
        for spec, source in zip(self.specs, self.sources, strict=True):
            stage = build(source)
            wanted = {name for name in spec.state if name in state}
            assert set(stage.state_dict()) == wanted
            stage.load_state_dict({name: state[name] for name in wanted}, strict=True)
            for name, buffer in stage.named_buffers(remove_duplicate=False):
                if name not in state:
                    buffer.copy_(kept[name])
            stage.train(model.training)
            self.stages.append(stage)

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """Return the tensors of the model's output, computed by the stages."""
        given = dict(walk_inputs(args, kwargs))
        values = {spec.name: given[spec.path] for spec in self.program.inputs}
        for spec, stage in zip(self.specs, self.stages, strict=True):
            taken = [
                values[name].clone() if name in spec.clone else values[name] for name in spec.take
            ]
            result = stage(*taken)
            results = (result,) if len(spec.give) == 1 else result
            assert isinstance(results, tuple)
            values.update(zip(spec.give, results, strict=True))
        return [values[name] for name in self.program.output_tree.values()]


def build(source: StageSource) -> nn.Module:
    """Execute the text of a stage and return the stage."""
    module = ModuleType(f"stage_{source.index}")
    sys.modules[module.__name__] = module
    exec(compile(source.text, f"stage_{source.index}.py", "exec"), module.__dict__)
    stage: nn.Module = getattr(module, f"Stage{source.index}")()
    return stage


def from_module(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    symbols: dict[tuple[int, int], str] | None = None,
) -> LoadedModel:
    """Return a model ready to be traced; dimension 0 of each tensor is the batch."""
    tensors = [tensor for _, tensor in walk_inputs(args, kwargs or {})]
    return LoadedModel(
        ref=ModelRef(spec="model.py:build"),
        model=model,
        args=args,
        kwargs=kwargs or {},
        symbols=symbols or {(at, 0): "batch" for at, t in enumerate(tensors) if t.dim()},
        batch_dims=[0 if tensor.dim() else None for tensor in tensors],
    )


def from_file(path: Path, name: str = "build", batch_size: int | None = None) -> LoadedModel:
    """Return the model of a file."""
    return load_model(ModelRef(spec=f"{path}:{name}", batch_size=batch_size))


def cut(program: Program, count: int, at: Sequence[str] = ()) -> dict[str, int]:
    """Return a stage for each operation: equal counts, or new stages where modules begin."""
    operations = program.operations
    if not at:
        return {node.name: i * count // len(operations) for i, node in enumerate(operations)}
    found: dict[str, int] = {}
    left, stage = list(at), 0
    for node in operations:
        called = {program.calls[index].fqn for index in node.calls} | {node.target}
        if left and left[0] in called:
            left.pop(0)
            stage += 1
        found[node.name] = stage
    assert not left, f"no operation in {left}"
    return found


def make(
    loaded: LoadedModel,
    count: int = 2,
    at: Sequence[str] = (),
    options: CodegenOptions | None = None,
    traced: Trace | None = None,
) -> Chain:
    """Trace a model and emit its stages."""
    found = traced or trace(loaded)
    number = len(at) + 1 if at else count
    specs, routing = stages.split(found.program, cut(found.program, number, at), number)
    return Chain(loaded, found, specs, routing, generate(found.program, specs, options))


@dataclass
class Difference:
    """Largest differences between stages and model."""

    output: float = 0.0
    gradient: dict[str, float] = field(default_factory=dict)
    buffer: float = 0.0


def compare(chain: Chain, *, train: bool, batch_size: int | None = None) -> Difference:
    """Run the stages and a copy of the model on the same inputs, gradients included."""
    model = copy.deepcopy(chain.loaded.model).train(train)
    chain.load(model)
    args, kwargs = chain.loaded.args, chain.loaded.kwargs
    if batch_size is not None:
        args, kwargs = resize_batch(args, kwargs, chain.loaded.batch_dims, batch_size)
    torch.manual_seed(7)
    expected = [tensor for _, tensor in walk(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))]
    torch.manual_seed(7)
    found = chain.run(*copy.deepcopy((args, kwargs)))
    result = Difference(output=_largest(expected, found))
    _backward(expected)
    _backward(found)
    result.gradient = _gradients(chain, model)
    buffers = dict(model.named_buffers(remove_duplicate=False))
    for stage in chain.stages:
        for name, buffer in stage.named_buffers(remove_duplicate=False):
            if name in buffers:
                result.buffer = max(result.buffer, _largest([buffers[name]], [buffer]))
    return result


def _backward(tensors: list[torch.Tensor]) -> None:
    parts = [t.double().pow(2).mean() for t in tensors if t.is_floating_point() and t.requires_grad]
    if parts:
        torch.stack(parts).sum().backward()


def _gradients(chain: Chain, model: nn.Module) -> dict[str, float]:
    first = {name: spec.fqn for name, spec in chain.program.state.items()}
    summed: dict[str, torch.Tensor] = {}
    for stage in chain.stages:
        for name, parameter in stage.named_parameters():
            assert parameter.requires_grad == model.get_parameter(name).requires_grad, name
            if parameter.grad is not None:
                key = first[name]
                summed[key] = summed[key] + parameter.grad if key in summed else parameter.grad
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            assert name not in summed, name
            continue
        found[name] = _largest([parameter.grad], [summed[first[name]]])
    return found


def _largest(expected: list[torch.Tensor], found: list[torch.Tensor]) -> float:
    assert len(expected) == len(found)
    worst = 0.0
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.numel():
            worst = max(worst, (a.double() - b.double()).abs().nan_to_num(0.0).max().item())
    return worst
