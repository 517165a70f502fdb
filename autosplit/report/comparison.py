"""Two profiles side by side: the same modules, before and after, here and there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autosplit.report.advice import layer_s, total_s
from autosplit.report.paths import Module, tree
from autosplit.report.styles import GOOD, HOT, LABEL, STRONG
from autosplit.report.tables import facts, grid, model_name
from autosplit.types import LayerProfile, Profile
from autosplit.units import format_bytes, format_seconds

_NOISE = 0.05
"""Ratios this near to one are not coloured."""


@dataclass(frozen=True)
class ModuleDifference:
    """What one module costs in two profiles; None where a profile has no such module.

    Parameters
    ----------
    path
        Module path, or the name of a layer.
    seconds
        Forward plus backward in the first and in the second profile.
    saved_bytes
        Bytes of the storages that backward keeps.
    """

    path: str
    seconds: tuple[float | None, float | None]
    saved_bytes: tuple[int | None, int | None]

    @property
    def ratio(self) -> float | None:
        """Return second over first, where both are there and the first takes time."""
        first, second = self.seconds
        return second / first if first and second is not None else None


def differences(first: Profile, second: Profile, depth: int = 2) -> tuple[ModuleDifference, ...]:
    """Return the modules of two profiles in running order, the sum of all first.

    Parameters
    ----------
    depth
        Names of a path that are kept apart; what lies deeper is summed.
    """
    sides = (_modules(first, depth), _modules(second, depth))
    paths = dict.fromkeys([*sides[0], *sides[1]])
    found = [_difference("", first.layers, first, second.layers, second)]
    for path in paths:
        layers = [side.get(path) for side in sides]
        found.append(_difference(path, layers[0], first, layers[1], second))
    return tuple(found)


def comparison_tables(
    first: Profile, second: Profile, depth: int = 2, top: int | None = None
) -> list[RenderableType]:
    """Return two profiles side by side, modules with the largest difference of time first."""
    whole, *modules = differences(first, second, depth)
    modules.sort(key=_weight, reverse=True)
    table = grid("Forward and backward, and what backward keeps")
    table.add_column("module", overflow="fold")
    for heading in ("A", "B", "B / A", "saved A", "saved B"):
        table.add_column(heading, justify="right", no_wrap=True)
    _row(table, whole, "all")
    for module in modules[:top]:
        _row(table, module, module.path)
    if top is not None and len(modules) > top:
        table.caption = Text(f"{len(modules) - top} more differ less", style=LABEL)
    return [facts([("A", _title(first)), ("B", _title(second))]), "", table]


def comparison_data(first: Profile, second: Profile, depth: int = 2) -> dict[str, Any]:
    """Return two profiles side by side, for programs."""
    whole, *modules = differences(first, second, depth)
    return {
        "schema": "autosplit.report.comparison",
        "version": [1, 0],
        "total": _data(whole),
        "modules": [{"path": module.path, **_data(module)} for module in modules],
    }


def _modules(profile: Profile, depth: int) -> dict[str, list[LayerProfile]]:
    """Return the layers below each path of ``depth`` names, or fewer where there are no more."""
    names = [layer.name for layer in profile.layers]
    return {
        module.path: [profile.layer[name] for name in module.layers]
        for module in _cut(tree(names), depth)
    }


def _cut(module: Module, depth: int) -> Iterator[Module]:
    """Yield modules that together hold every layer once."""
    if depth == 0 or not module.children:
        yield module
        return
    own = [name for name in module.layers if name == module.path]
    if own:
        yield Module(module.path, own)
    for child in module.children.values():
        yield from _cut(child, depth - 1)


def _difference(
    path: str,
    ours: Sequence[LayerProfile] | None,
    first: Profile,
    theirs: Sequence[LayerProfile] | None,
    second: Profile,
) -> ModuleDifference:
    return ModuleDifference(
        path,
        (_each(ours, _seconds), _each(theirs, _seconds)),
        (
            _each(ours, lambda layers: _saved(layers, first)),
            _each(theirs, lambda layers: _saved(layers, second)),
        ),
    )


def _each(layers: Sequence[LayerProfile] | None, measure: Callable[..., Any]) -> Any:
    return None if layers is None else measure(layers)


def _seconds(layers: Sequence[LayerProfile]) -> float:
    return sum(map(layer_s, layers))


def _saved(layers: Sequence[LayerProfile], profile: Profile) -> int:
    """Return the bytes that some layers keep, each storage once."""
    kept = {index for layer in layers for index in layer.saved}
    return sum(storage.nbytes for storage in profile.storages if storage.index in kept)


def _weight(module: ModuleDifference) -> float:
    first, second = (seconds or 0.0 for seconds in module.seconds)
    return abs(second - first)


def _row(table: Table, module: ModuleDifference, name: str) -> None:
    style = STRONG if name == "all" else ""
    table.add_row(
        Text(name, style=style),
        *(format_seconds(s) if s is not None else "-" for s in module.seconds),
        _ratio(module.ratio),
        *(format_bytes(b) if b is not None else "-" for b in module.saved_bytes),
    )


def _ratio(ratio: float | None) -> Text:
    if ratio is None:
        return Text("-")
    style = HOT if ratio > 1 + _NOISE else GOOD if ratio < 1 - _NOISE else ""
    return Text(f"{ratio:.2f}×", style=style)


def _title(profile: Profile) -> Text:
    device = profile.device
    way = "modelled for" if device.clock == "model" else "on"
    return Text(
        f"{model_name(profile.model)} {way} {device.name}: {format_seconds(total_s(profile))}"
    )


def _data(module: ModuleDifference) -> dict[str, Any]:
    return {
        "seconds": list(module.seconds),
        "ratio": module.ratio,
        "saved_bytes": list(module.saved_bytes),
    }
