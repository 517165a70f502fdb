"""Which modules a trace calls as one operation, and how to build such a module again."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from autosplit.program import Arg, Constructor, Sequence, Token

_CONTAINERS = (
    nn.Sequential,
    nn.ModuleList,
    nn.ModuleDict,
    nn.ParameterList,
    nn.ParameterDict,
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)
_RANDOM = (nn.modules.dropout._DropoutNd, nn.RReLU)
_MISSING = object()


class NotRebuildable(Exception):  # noqa: N818 - it is caught, never shown
    """A module whose constructor's arguments cannot be told from the object."""


def leaf_constructor(module: nn.Module) -> Constructor | None:
    """Return how to build ``module``, or None if it must be traced through.

    A leaf is a ``torch.nn`` layer without hooks or parametrizations for which the constructor
    call found here makes, on meta, a module with the same state and settings.
    """
    cls = type(module)
    if not cls.__module__.startswith("torch.nn.modules.") or isinstance(module, _CONTAINERS):
        return None
    if _has_hooks(module) or "forward" in vars(module):
        return None
    for collapse in (True, False):
        try:
            constructor, args, kwargs = _constructor(module, collapse)
            if _same(module, _rebuilt(cls, args, kwargs)):
                return constructor
        except NotRebuildable:
            continue
    return None


def is_random(module: nn.Module) -> bool:
    """Tell whether a call of the leaf draws random numbers in training."""
    if isinstance(module, _RANDOM):
        return float(getattr(module, "p", 1.0)) > 0
    rate = getattr(module, "dropout", 0.0)
    return isinstance(rate, float) and rate > 0


def updates_state(module: nn.Module) -> bool:
    """Tell whether a call of the leaf changes its buffers in training."""
    return bool(getattr(module, "track_running_stats", False)) and bool(module._buffers)


@contextlib.contextmanager
def without_counting(module: nn.Module) -> Iterator[None]:
    """Let a norm run on fake tensors: a momentum of None is read out of its counter's value."""
    settings = vars(module)
    counts = settings.get("momentum", 0.1) is None
    if counts:
        settings["momentum"] = 0.1
    try:
        yield
    finally:
        if counts:
            settings["momentum"] = None


def _has_hooks(module: nn.Module) -> bool:
    return any(
        bool(part._forward_hooks)
        or bool(part._forward_pre_hooks)
        or bool(part._backward_hooks)
        or bool(part._backward_pre_hooks)
        or is_parametrized(part)
        for part in module.modules()
    )


def _constructor(
    module: nn.Module, collapse: bool
) -> tuple[Constructor, tuple[Any, ...], dict[str, Any]]:
    cls = type(module)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, parameter in _parameters(cast(Any, cls)).items():
        value = _argument(module, name)
        if collapse and isinstance(value, tuple) and len(value) > 1 and len(set(value)) == 1:
            value = value[0]
        has_default = parameter.default is not inspect.Parameter.empty
        if value is _MISSING:
            if not has_default:
                raise NotRebuildable(name)
            continue
        if has_default and _equal(value, parameter.default):
            continue
        if has_default or parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            kwargs[name] = value
        else:
            args.append(value)
    constructor = Constructor(
        f"torch.nn.{cls.__name__}",
        tuple(_plain(value) for value in args),
        tuple((name, _plain(value)) for name, value in kwargs.items()),
    )
    return constructor, tuple(args), kwargs


@functools.cache
def _parameters(cls: Any) -> dict[str, inspect.Parameter]:
    """Return the constructor's named parameters, looking up the bases through ``*args``."""
    found: dict[str, inspect.Parameter] = {}
    for base in cls.__mro__:
        if base is nn.Module:
            break
        if "__init__" not in vars(base):
            continue
        parameters = list(inspect.signature(vars(base)["__init__"]).parameters.values())[1:]
        variadic = [p for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
        for p in parameters:
            if p.name not in _SKIPPED and p.kind not in _VARIADIC and p.name[0] != "_":
                found.setdefault(p.name, p)
        if not variadic or cls is nn.Identity:
            break
    if issubclass(cls, nn.RNNBase):
        found.pop("mode", None)
        if cls is nn.RNN:
            found["nonlinearity"] = inspect.Parameter(
                "nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh"
            )
    return found


_SKIPPED = ("device", "dtype", "size_average", "reduce")
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _argument(module: nn.Module, name: str) -> Any:
    """Return the value of a constructor argument as the built module shows it."""
    if name == "bias" and not isinstance(getattr(module, "bias", None), bool):
        for key in ("bias", "in_proj_bias"):
            if key in module._parameters:
                return module._parameters[key] is not None
    if name == "add_bias_kv":
        return getattr(module, "bias_k", None) is not None
    if name == "nonlinearity" and isinstance(module, nn.RNN):
        return "relu" if module.mode == "RNN_RELU" else "tanh"
    value = getattr(module, name, _MISSING)
    if isinstance(value, (torch.Tensor, nn.Module)):
        raise NotRebuildable(name)
    return value


def _plain(value: Any) -> Arg:
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (tuple, list)):
        kind = "list" if isinstance(value, list) else "tuple"
        return Sequence(kind, tuple(_plain(item) for item in value))  # type: ignore[arg-type]
    if isinstance(value, torch.dtype):
        return Token("dtype", str(value).removeprefix("torch."))
    raise NotRebuildable(repr(value))


def _rebuilt(cls: type[nn.Module], args: tuple[Any, ...], kwargs: dict[str, Any]) -> nn.Module:
    key = (cls, repr(args), repr(kwargs))
    if key not in _BUILT:
        with torch.device("meta"):
            try:
                _BUILT[key] = cls(*args, **kwargs)
            except Exception as error:
                raise NotRebuildable(str(error)) from error
    return _BUILT[key]


_BUILT: dict[tuple[type[nn.Module], str, str], nn.Module] = {}


def _same(module: nn.Module, rebuilt: nn.Module) -> bool:
    return _state(module) == _state(rebuilt) and _settings(module) == _settings(rebuilt)


def _state(module: nn.Module) -> dict[str, tuple[int, ...]]:
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
    return {name: tuple(tensor.shape) for name, tensor in named}


def _settings(module: nn.Module) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, (tuple, list)) else value
        for name, value in vars(module).items()
        if name[0] != "_"
        and name != "training"
        and isinstance(value, (bool, int, float, str, tuple, list, type(None)))
    }


def _equal(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)
