"""Exported code of stages, loaded into this process and run one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from autosplit.errors import AutosplitError
from autosplit.profilers.clocks import Clock


@dataclass(frozen=True)
class StageCode:
    """The code of a stage, and what it takes and gives.

    Parameters
    ----------
    name
        Of the class in ``text``.
    text
        Python source, as it is exported.
    take, give
        Names of values.
    clone
        Those of ``take`` to which it writes.
    """

    name: str
    text: str
    take: tuple[str, ...]
    give: tuple[str, ...]
    clone: frozenset[str]


def load_stage(code: StageCode, model: nn.Module, constants: Mapping[str, Tensor]) -> nn.Module:
    """Build a stage that shares parameters, buffers and modes with its model.

    Parameters
    ----------
    constants
        Tensors that the stage holds as buffers and the model does not, by name.

    Raises
    ------
    AutosplitError
        If the code does not run.
    """
    module = ModuleType(code.name)
    try:
        exec(compile(code.text, f"{code.name}.py", "exec"), module.__dict__)
        stage: nn.Module = getattr(module, code.name)()
        _share(stage, model, constants)
    except Exception as error:
        raise AutosplitError(
            "the exported code cannot be loaded",
            cause=f"{type(error).__name__}: {' '.join(str(error).split())}",
        ) from error
    modes = {name: each.training for name, each in model.named_modules(remove_duplicate=False)}
    for name, each in stage.named_modules():
        each.training = modes.get(name, model.training)
    return stage


def _share(stage: nn.Module, model: nn.Module, constants: Mapping[str, Tensor]) -> None:
    """Put tensors of a model in the places of those that a stage was built with."""
    named: dict[str, Tensor] = dict(constants)
    named.update(model.named_buffers(remove_duplicate=False))
    named.update(model.named_parameters(remove_duplicate=False))
    visible = stage.state_dict()
    stage.load_state_dict({name: named[name] for name in visible}, assign=True)
    for name, _ in list(stage.named_buffers(remove_duplicate=False)):
        if name not in visible:
            _set_buffer(stage, name, named[name])


def _set_buffer(stage: nn.Module, name: str, value: Tensor) -> None:
    path, _, own = name.rpartition(".")
    stage.get_submodule(path)._buffers[own] = value


class StageChain:
    """Stages that hand micro-batches to one another, each on tensors of its own.

    Parameters
    ----------
    stages
        Modules, each with its code.
    inputs
        Model inputs by name.
    training
        Whether there is a backward.
    outputs
        Names of the values the model returns.
    """

    def __init__(
        self,
        stages: Sequence[tuple[nn.Module, StageCode]],
        inputs: Mapping[str, Tensor],
        training: bool,
        outputs: Iterable[str],
    ) -> None:
        self._stages = stages
        self._inputs = inputs
        self._training = training
        self._outputs = tuple(outputs)
        self._seeds: dict[str, Tensor] = {}

    def run(self, clock: Clock) -> tuple[list[float], list[float]]:
        """Run one micro-batch and return forward and backward seconds of each stage."""
        clock.start()
        with torch.set_grad_enabled(self._training):
            tape, forward = self._forward(clock)
        backward = self._backward(tape, clock) if self._training else [None] * len(forward)
        clock.stop()
        return _seconds(clock, forward), _seconds(clock, backward)

    def _forward(self, clock: Clock) -> tuple[list[_Passed], list[Any]]:
        values = dict(self._inputs)
        tape: list[_Passed] = []
        marks: list[Any] = []
        for stage, code in self._stages:
            taken = {
                name: values[name].detach().requires_grad_(values[name].requires_grad)
                for name in code.take
            }
            own = [value.clone() if name in code.clone else value for name, value in taken.items()]
            begin = clock.mark()
            given = stage(*own)
            marks.append((begin, clock.mark()))
            results = (given,) if isinstance(given, Tensor) else given
            made = dict(zip(code.give, results, strict=True))
            values.update(made)
            tape.append((taken, made))
            del own, given, results
        return tape, marks

    def _backward(self, tape: list[_Passed], clock: Clock) -> list[Any]:
        gradients = dict(self._seeds or self._seed(tape))
        marks: list[Any] = [None] * len(tape)
        for index in reversed(range(len(tape))):
            taken, made = tape.pop()
            roots = [name for name, value in made.items() if value.requires_grad]
            roots = [name for name in roots if name in gradients]
            begin = clock.mark()
            if roots:
                torch.autograd.backward(
                    [made[name] for name in roots], [gradients.pop(name) for name in roots]
                )
            marks[index] = (begin, clock.mark())
            for name, value in taken.items():
                if value.grad is not None:
                    known = gradients.get(name)
                    gradients[name] = value.grad if known is None else known + value.grad
        return marks

    def _seed(self, tape: list[_Passed]) -> dict[str, Tensor]:
        """Return the gradients that a loss would send: ones, made once."""
        made = {name: value for _, given in tape for name, value in given.items()}
        found = {name: made[name] for name in self._outputs if name in made}
        self._seeds = {n: torch.ones_like(v) for n, v in found.items() if v.requires_grad}
        return self._seeds


_Passed = tuple[dict[str, Tensor], dict[str, Tensor]]
"""What a stage took and gave."""


def _seconds(clock: Clock, marks: Iterable[Any]) -> list[float]:
    return [clock.seconds(*pair) if pair else 0.0 for pair in marks]
