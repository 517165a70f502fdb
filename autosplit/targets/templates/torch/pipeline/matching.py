"""Which tensor of a file becomes which tensor of a stage: strictly, name by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from .errors import PipelineError
from .tensorfiles import TensorInfo, Tensors, listed, same_bits

_WRAPPERS = ("module.", "model.", "transformer.", "_orig_mod.", "_fsdp_wrapped_module.")


def match(
    expected: Mapping[str, TensorInfo],
    aliases: Mapping[str, str],
    source: Tensors,
    *,
    convert: bool = False,
    ignore_extra: bool = False,
) -> dict[str, str]:
    """Return the name in ``source`` of every expected tensor.

    Parameters
    ----------
    expected
        What is needed.
    aliases
        ``other name -> first name`` of tied tensors: any of the names will do.
    source
        What is there.
    convert
        Accept another floating-point dtype.
    ignore_extra
        Accept tensors that are not needed.

    Raises
    ------
    PipelineError
        If tensors are missing, unknown, or of another shape or dtype, or tied ones differ.
    """
    names = _names_by_first(aliases)
    group = {name: names.get(aliases.get(name, name), [name]) for name in expected}
    known = {other for every in group.values() for other in every}
    found = {
        name: next((other for other in [name, *every] if other in source.infos), None)
        for name, every in group.items()
    }
    missing = {name for name, there in found.items() if there is None}
    unknown = source.infos.keys() - known
    if missing or (unknown and not ignore_extra):
        hint = _prefix_hint(known, source)
        if not missing:
            hint = hint or "--ignore-extra leaves them out"
        raise PipelineError(_differences(source, missing, unknown), hint)
    chosen = {name: there for name, there in found.items() if there is not None}
    _check_kinds(expected, chosen, source, convert)
    _check_ties(names, source)
    return chosen


def converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor in another dtype; numbers that do not fit into it are refused."""
    result = tensor.to(dtype)
    if dtype != tensor.dtype and bool((result.isinf() & ~tensor.isinf()).any()):
        raise PipelineError(f"{name} holds numbers too large for {dtype}")
    return result


def _names_by_first(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for other, first in aliases.items():
        names.setdefault(first, [first]).append(other)
    return names


def _differences(source: Tensors, missing: set[str], unknown: set[str]) -> str:
    parts = []
    if missing:
        parts.append(f"lacks {len(missing)} of the model's tensors ({listed(missing)})")
    if unknown:
        parts.append(f"has {len(unknown)} that the model does not ({listed(unknown)})")
    return f"{source.where} {' and '.join(parts)}"


def _prefix_hint(known: Iterable[str], source: Tensors) -> str | None:
    """Say which prefix, added or left out, makes the names those of the model."""
    there, wanted = set(source.infos), set(known)
    for prefix in _WRAPPERS:
        if {name.removeprefix(prefix) for name in there} <= wanted:
            return f"without {prefix!r} its names are those of the model: save the module inside"
        if {prefix + name for name in there} <= wanted:
            return f"with {prefix!r} its names are those of the model: save the module around it"
    return None


def _check_kinds(
    expected: Mapping[str, TensorInfo],
    chosen: Mapping[str, str],
    source: Tensors,
    convert: bool,
) -> None:
    wrong = []
    castable = 0  # wrong in nothing but a dtype that could be converted
    for name, there in chosen.items():
        need, info = expected[name], source.infos[there]
        both_float = need.dtype.is_floating_point and info.dtype.is_floating_point
        castable += info.shape == need.shape and both_float and info != need
        if info.shape != need.shape or (info.dtype != need.dtype and not (convert and both_float)):
            wrong.append(f"{there} is {info}, not {need}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        hint = "--weights-dtype model converts them" if castable == len(wrong) else None
        raise PipelineError(f"{source.where}: {'; '.join(wrong[:3])}{more}", hint)


def _check_ties(names: Mapping[str, list[str]], source: Tensors) -> None:
    for every in names.values():
        first, *others = [name for name in every if name in source.infos] or [""]
        for other in others:
            if not same_bits(source.read(first), source.read(other)):
                raise PipelineError(
                    f"{source.where}: {other} and {first} are one tensor in the model and differ"
                )
