"""The model's modules, parameters, buffers and captured constants as plain data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from autosplit.program import ORIGINAL, Constructor, ModuleSpec, StateSpec
from autosplit.tracers.leaves import is_random, updates_state


def module_specs(model: nn.Module, leaves: Mapping[str, Constructor]) -> tuple[ModuleSpec, ...]:
    """Return every module once, under its first name, with its further names."""
    found: dict[int, tuple[str, nn.Module, list[str]]] = {}
    for fqn, module in model.named_modules(remove_duplicate=False):
        known = found.get(id(module))
        if known is None:
            found[id(module)] = (fqn, module, [])
        else:
            known[2].append(fqn)
    return tuple(
        _module_spec(fqn, module, tuple(aliases), leaves.get(fqn))
        for fqn, module, aliases in found.values()
    )


def _module_spec(
    fqn: str, module: nn.Module, aliases: tuple[str, ...], constructor: Constructor | None
) -> ModuleSpec:
    cls = type(module)
    state = [*module._parameters.items(), *module._buffers.items()]
    leaf = constructor is not None
    return ModuleSpec(
        fqn,
        cls.__name__,
        f"{cls.__module__}.{cls.__qualname__}",
        leaf,
        constructor,
        tuple(name for name, child in module._modules.items() if child is not None),
        tuple(name for name, tensor in state if tensor is not None),
        tuple(
            (name, value)
            for name, value in sorted(vars(module).items())
            if name[0] != "_" and name != "training" and _is_setting(value)
        ),
        aliases,
        inplace=leaf and getattr(module, "inplace", False) is True,
        random=leaf and (_is_whole(constructor) or is_random(module)),
        training_state=leaf and any(map(updates_state, module.modules())),
        training=module.training,
    )


def _is_whole(constructor: Constructor | None) -> bool:
    """Whether nothing is known of what a leaf does but what it takes and returns."""
    return constructor is not None and constructor.qualified == ORIGINAL


def _is_setting(value: object) -> bool:
    """Tell whether an attribute is a plain setting; paths differ between machines."""
    return type(value) in (int, float, bool) or (type(value) is str and "/" not in value)


def state_specs(
    model: nn.Module, constants: Mapping[str, torch.Tensor], used: set[str]
) -> tuple[StateSpec, ...]:
    """Return every parameter, buffer and used constant once, with its further names."""
    names: dict[int, list[str]] = {}
    tensors: dict[int, tuple[torch.Tensor, str, bool]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        head = f"{prefix}." if prefix else ""
        transient = module._non_persistent_buffers_set
        for kind, table in (("parameter", module._parameters), ("buffer", module._buffers)):
            for key, tensor in table.items():
                if tensor is None:
                    continue
                persistent = kind == "parameter" or key not in transient
                names.setdefault(id(tensor), []).append(head + key)
                known = tensors.get(id(tensor))
                kept = persistent or (known is not None and known[2])
                tensors[id(tensor)] = (tensor, known[1] if known else kind, kept)
    specs = [
        _state_spec(names[key][0], tensor, kind, persistent, tuple(names[key][1:]))
        for key, (tensor, kind, persistent) in tensors.items()
    ]
    captured = [
        _state_spec(name, tensor, "constant", False, ())
        for name, tensor in constants.items()
        if name in used
    ]
    return (*specs, *captured)


def _state_spec(
    fqn: str, tensor: torch.Tensor, kind: str, persistent: bool, aliases: tuple[str, ...]
) -> StateSpec:
    return StateSpec(
        fqn,
        kind,  # type: ignore[arg-type]
        tuple(tensor.shape),
        str(tensor.dtype).removeprefix("torch."),
        tensor.requires_grad,
        persistent,
        aliases,
    )
