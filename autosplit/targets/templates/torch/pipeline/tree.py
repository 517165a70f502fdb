"""Nested inputs and outputs: from the structure to flat names, and back."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .errors import PipelineError


@dataclass(frozen=True)
class Tree:
    """A structure whose leaves are named tensors or constants, as ``routing.json`` holds it.

    Parameters
    ----------
    kind
        "value", "constant", "tuple", "list", "dict", "namedtuple" or "object".
    value
        Name of the tensor, or the constant.
    type_name
        ``module:Class`` of a namedtuple or object.
    keys
        Keys of a dict, or field names of a namedtuple or object.
    items
        Children, in order.
    """

    kind: str
    value: Any
    type_name: str | None
    keys: tuple[Any, ...]
    items: tuple[Tree, ...]

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Tree:
        """Build a tree from its JSON form."""
        return cls(
            kind=data["kind"],
            value=data["value"],
            type_name=data["type_name"],
            keys=tuple(data["keys"]),
            items=tuple(cls.from_data(item) for item in data["items"]),
        )

    def names(self) -> Iterator[str]:
        """Yield the names of the tensors, left to right, repeats included."""
        if self.kind == "value":
            yield self.value
        for item in self.items:
            yield from item.names()

    def paths(self, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yield ``(path, name)`` of every tensor: ``("hidden.0", "relu_1")``."""
        if self.kind == "value":
            yield prefix, self.value
        labels = self.keys or range(len(self.items))
        for label, item in zip(labels, self.items, strict=True):
            yield from item.paths(f"{prefix}.{label}" if prefix else str(label))


class Output(dict[str, Any]):
    """Fields of an output whose class is not at hand: ``output["loss"]`` or ``output.loss``."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


# ---------------------------------------------------------------- from structure to names


def flatten(tree: Tree, value: Any) -> dict[str, Tensor]:
    """Return the tensors of ``value`` by name.

    Raises
    ------
    PipelineError
        If the structure or a constant is not what the stages were made for.
    """
    found: dict[str, Tensor] = {}
    _collect(tree, value, "", found)
    return found


def _collect(tree: Tree, value: Any, path: str, found: dict[str, Tensor]) -> None:
    if tree.kind == "value":
        if not isinstance(value, Tensor):
            raise PipelineError(f"input{path} must be a tensor, not {_shown(value)}")
        found[tree.value] = value
    elif tree.kind == "constant":
        if (
            isinstance(value, Tensor)
            or type(value) is not type(tree.value)
            or (value != tree.value)
        ):
            raise PipelineError(
                f"input{path} is {_shown(value)}; the stages were made for {tree.value!r}: "
                "export the model again with the other value"
            )
    else:
        for label, item, child in zip(
            _labels(tree), _children(tree, value, path), tree.items, strict=True
        ):
            _collect(child, item, f"{path}[{label!r}]", found)


def _labels(tree: Tree) -> tuple[Any, ...]:
    return tree.keys or tuple(range(len(tree.items)))


def _children(tree: Tree, value: Any, path: str) -> list[Any]:
    if tree.kind in ("tuple", "list", "namedtuple"):
        if not isinstance(value, (tuple, list)) or len(value) != len(tree.items):
            raise PipelineError(
                f"input{path} must be a {tree.kind} of {len(tree.items)}, not {_shown(value)}"
            )
        return list(value)
    if isinstance(value, Mapping):
        if set(value) != set(tree.keys):
            differing = sorted(map(repr, set(value) ^ set(tree.keys)))
            raise PipelineError(
                f"input{path} must have the keys {', '.join(map(str, tree.keys)) or '(none)'}; "
                f"{', '.join(differing)} differs"
            )
        return [value[key] for key in tree.keys]
    if tree.kind == "dict":
        raise PipelineError(f"input{path} must be a dict, not {_shown(value)}")
    missing = [key for key in tree.keys if not hasattr(value, str(key))]
    if missing:
        raise PipelineError(f"input{path} has no {missing[0]!r}: it is {_shown(value)}")
    return [getattr(value, key) for key in tree.keys]


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


# ---------------------------------------------------------------- from names to structure


def rebuild(tree: Tree, values: Mapping[str, Tensor]) -> Any:
    """Return the structure with the tensors put in; an output class where it can be imported."""
    if tree.kind == "value":
        return values[tree.value]
    if tree.kind == "constant":
        return tree.value
    items = [rebuild(item, values) for item in tree.items]
    if tree.kind == "tuple":
        return tuple(items)
    if tree.kind == "list":
        return items
    fields = dict(zip(tree.keys, items, strict=True))
    if tree.kind == "dict":
        return fields
    return _construct(_find_class(tree.type_name or ""), fields)


def _find_class(type_name: str) -> type | None:
    module_name, _, path = type_name.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found if isinstance(found, type) else None


def _construct(cls: type | None, fields: dict[str, Any]) -> Any:
    if cls is None:
        return Output(fields)
    if not dataclasses.is_dataclass(cls) and issubclass(cls, Mapping):
        mapping: Any = cls
        return mapping(fields)
    return cls(**fields)
