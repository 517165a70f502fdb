"""Fake tensors in place of a model's inputs and state; the model is left as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from autosplit.program import Constructor
from autosplit.tracers.leaves import leaf_constructor
from autosplit.tracers.refusals import ModelError

_PLAIN_VALUES = (int, float, str)
_PLAIN_TYPES = (torch.Tensor, nn.Parameter, nn.Buffer)


class FakeModel:
    """A model whose parameters and buffers are fake while ``in_place`` is entered.

    Parameters
    ----------
    model
        The model.
    mode
        Mode in which fake tensors are made.
    whole
        Modules that are recorded as one call besides the layers of torch.

    Attributes
    ----------
    constructors
        Leaf modules, by name, with the call that makes them.
    counted
        Plain attributes that the forward changed while the state was fake.
    """

    def __init__(
        self,
        model: nn.Module,
        mode: FakeTensorMode,
        whole: Mapping[str, Constructor] | None = None,
    ) -> None:
        self.model = model
        self.mode = mode
        self.constructors: dict[str, Constructor] = {}
        self.counted: tuple[str, ...] = ()
        self._fqns: dict[int, str] = {}
        self._names: dict[int, str] = {}
        self._first: dict[str, str] = {}
        self._fakes: list[torch.Tensor] = []
        for fqn, module in model.named_modules():
            _refuse_unusual_module(module, fqn)
            self._fqns[id(module)] = fqn
            # A model that is one leaf is traced through: its name, the empty one, calls nothing.
            constructor = leaf_constructor(module) if fqn else None
            if constructor is not None:
                self.constructors[fqn] = constructor
        self.constructors.update(whole or {})

    def fqn_of(self, module: nn.Module) -> str | None:
        """Return a module's first name; None if it is no part of the model."""
        return self._fqns.get(id(module))

    def is_leaf(self, module: nn.Module) -> bool:
        """Tell whether the module is recorded as one call."""
        return self._fqns[id(module)] in self.constructors

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """Return the first name of a fake parameter or buffer."""
        return self._names.get(id(tensor))

    def first_name(self, name: str) -> str:
        """Return the first name of the state that has ``name`` as one of its names."""
        return self._first[name]

    def _changed(self, module: nn.Module, before: Mapping[str, Any]) -> Iterator[str]:
        """Yield the plain numbers and strings of a module that the forward has changed."""
        fqn = self._fqns[id(module)]
        for name, value in vars(module).items():
            known = before.get(name)
            if isinstance(known, _PLAIN_VALUES) and type(value) is type(known) and value != known:
                yield f"{fqn}.{name}" if fqn else name

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Exchange the state for fake tensors, and put everything back at the end."""
        before = [(module, dict(vars(module))) for module in self.model.modules()]
        tables: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (table, dict(table)) for module, _ in before for table in _tables(module)
        ]
        try:
            self._exchange()
            yield
        finally:
            for table, content in tables:
                table.clear()
                table.update(content)
            self.counted = tuple(
                name for module, attributes in before for name in self._changed(module, attributes)
            )
            for module, attributes in before:
                vars(module).clear()
                vars(module).update(attributes)

    def _exchange(self) -> None:
        memo: dict[int, torch.Tensor] = {}
        first: dict[int, str] = {}
        for prefix, module in self.model.named_modules():
            for table in _tables(module):
                for key, tensor in table.items():
                    if tensor is None:
                        continue
                    name = f"{prefix}.{key}" if prefix else key
                    if id(tensor) not in memo:
                        _refuse_unusual_tensor(tensor, name)
                        memo[id(tensor)] = self._fake_state(tensor)
                        first[id(tensor)] = name
                        self._names[id(memo[id(tensor)])] = name
                    self._first[name] = first[id(tensor)]
                    table[key] = memo[id(tensor)]
            if isinstance(module, nn.RNNBase):
                names = module._flat_weights_names
                vars(module)["_flat_weights"] = [getattr(module, name) for name in names]
        self._fakes = list(memo.values())

    def _fake_state(self, tensor: torch.Tensor) -> torch.Tensor:
        device = "cpu" if tensor.device.type == "meta" else tensor.device
        with self.mode, torch.no_grad():
            fake = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
            )
        if isinstance(tensor, nn.Parameter):
            return nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)


def fake_input(
    mode: FakeTensorMode, tensor: torch.Tensor, sizes: Mapping[int, int | torch.SymInt]
) -> torch.Tensor:
    """Return a fake tensor like ``tensor`` with the sizes in ``sizes``, which may be symbols."""
    shape: list[Any] = [sizes.get(dim, size) for dim, size in enumerate(tensor.shape)]
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    with mode, torch.no_grad():
        fake = torch.empty_strided(
            shape, _strides(tensor, shape), dtype=tensor.dtype, device=device
        )
    return fake.requires_grad_(tensor.requires_grad)


def _strides(tensor: torch.Tensor, shape: list[Any]) -> list[Any]:
    """Return strides for ``shape`` in the memory order of ``tensor``; repeated rows stay so."""
    strides: list[Any] = list(tensor.stride())
    step: Any = 1
    for dim in sorted(range(tensor.dim()), key=lambda dim: (tensor.stride(dim), -dim)):
        if tensor.stride(dim) == 0 and tensor.shape[dim] > 1:
            continue
        strides[dim] = step
        step = step * shape[dim]
    return strides


def _tables(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    return module._parameters, module._buffers


def _refuse_unusual_module(module: nn.Module, fqn: str) -> None:
    kind = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise ModelError(
            f"{fqn or 'the model'} is a {kind} (torch.jit)",
            hint="build the model from its Python class instead",
        )
    if kind == "OptimizedModule":
        raise ModelError(
            f"{fqn or 'the model'} is compiled",
            hint="pass the module itself; compile the stages after the export",
        )


def _refuse_unusual_tensor(tensor: torch.Tensor, name: str) -> None:
    if nn.parameter.is_lazy(tensor):
        raise ModelError(
            f"{name} has no shape yet",
            cause="its lazy module has not run",
            hint="run one forward before returning the model",
        )
    if type(tensor) not in _PLAIN_TYPES:
        raise ModelError(
            f"{name} is a {type(tensor).__name__}",
            cause="tensor subclasses (quantized, distributed) cannot be split",
            hint="build the plain model and convert the stages after the export",
        )
    if tensor._backward_hooks or getattr(tensor, "_post_accumulate_grad_hooks", None):
        raise ModelError(
            f"{name} has a hook on its gradient",
            cause="what a hook does cannot be written into a stage",
            hint="register it on the stage's parameter after the export",
        )
    if tensor.layout is not torch.strided:
        raise ModelError(f"{name} is a {tensor.layout} tensor", hint="use dense state")
