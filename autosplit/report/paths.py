"""Short names for sets of layers: whole modules instead of parts, ranges instead of lists."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field


@dataclass
class Module:
    """A module path and everything below it, in the order of the layers.

    Parameters
    ----------
    path
        Dotted path ("" for the root).
    layers
        Layers at or below it.
    children
        Modules one name deeper.
    """

    path: str
    layers: list[str] = field(default_factory=list)
    children: dict[str, Module] = field(default_factory=dict)


def tree(layers: Sequence[str]) -> Module:
    """Return the tree of module paths of the layers; a further piece ``h.0#2`` is below ``h.0``."""
    root = Module("")
    for layer in layers:
        here = root
        here.layers.append(layer)
        for part, path in _steps(layer):
            here = here.children.setdefault(part, Module(path))
            here.layers.append(layer)
    return root


def _steps(layer: str) -> Iterator[tuple[str, str]]:
    """Yield each name on the way to a layer, with the path up to it."""
    base, mark, piece = layer.partition("#")
    parts = base.split(".")
    for depth, part in enumerate(parts):
        yield part, ".".join(parts[: depth + 1])
    if mark:
        yield mark + piece, layer


def summarize(chosen: Collection[str], everything: Sequence[str]) -> tuple[str, ...]:
    """Name a set of layers as briefly as possible.

    A module whose layers are all chosen stands for them; neighbours that differ in one number
    become a range: ``("embed", "h.0 … h.5", "h.6.attn")``. A layer without those below it is
    "itself".
    """
    chosen = frozenset(chosen)
    return tuple(_ranges(list(_cover(tree(everything), chosen))))


def _cover(module: Module, chosen: frozenset[str]) -> Iterator[str]:
    if module.path and chosen.issuperset(module.layers):
        yield module.path
        return
    if module.path in chosen:
        yield f"{module.path} itself"
    for child in module.children.values():
        if not chosen.isdisjoint(child.layers):
            yield from _cover(child, chosen)


def _ranges(names: list[str]) -> Iterator[str]:
    start = 0
    for end in range(1, len(names) + 1):
        if end < len(names) and _follows(names[end - 1], names[end]):
            continue
        run = names[start:end]
        if len(run) > 2:
            yield f"{run[0]} … {run[-1]}"
        else:
            yield from run
        start = end


def _follows(first: str, second: str) -> bool:
    parent, _, number = first.rpartition(".")
    other, _, following = second.rpartition(".")
    if parent != other or not (number.isdecimal() and following.isdecimal()):
        return False
    return int(following) == int(number) + 1
