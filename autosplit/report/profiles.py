"""A profile as tables."""

from __future__ import annotations

from collections import defaultdict

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autosplit.report.advice import advise, layer_s, precision, total_s
from autosplit.report.bars import heat
from autosplit.report.tables import count, facts, grid, model_name, remarks
from autosplit.types import Calibration, LayerProfile, Profile
from autosplit.units import format_bytes, format_seconds, format_share

_TOP = 10


def profile_tables(profile: Profile, top: int = _TOP) -> list[RenderableType]:
    """Return what a person wants to know of a profile: the whole, the slowest layers, advice."""
    return [
        facts(_profile_facts(profile)),
        "",
        _slowest(profile, top),
        *remarks((*profile.notes, *advise(profile))),
    ]


def _profile_facts(profile: Profile) -> list[tuple[str, RenderableType]]:
    device = profile.device
    where = device.name
    if device.kind == "cpu":
        where += f", {count(device.threads, 'thread')}"
    state: dict[str, int] = defaultdict(int)
    for item in profile.states:
        state[item.kind] += item.nbytes
    if device.clock == "model":
        where += ", modelled"
    if device.compiled:
        where += ", layers compiled"
    pairs: list[tuple[str, RenderableType]] = [
        ("model", Text(model_name(profile.model))),
        ("device", Text(f"{where}, torch {device.torch_version}")),
        ("parameters", format_bytes(state["parameter"])),
    ]
    if profile.sizes and not profile.sweep:
        pairs.insert(1, ("sizes", _sizes_text(profile)))
    if state["buffer"]:
        pairs.append(("buffers", format_bytes(state["buffer"])))
    if profile.training:
        saved = sum(storage.nbytes for storage in profile.storages)
        pairs.append(("activations", f"{format_bytes(saved)} kept for backward"))
    pairs.append(("micro-batch", _step_text(profile)))
    if profile.whole is not None and profile.whole.first_s is not None:
        text = f"{format_seconds(profile.whole.first_s)}, with no gradients yet to add to"
        pairs.append(("first of a step", text))
    if profile.calibration is not None:
        pairs.append(("calibration", _calibration_text(profile.calibration)))
    if device.clock not in ("model", "file") and not _missed_precision(profile):
        pairs.append(("precision", _precision_text(profile)))
    if profile.sweep:
        pairs.append(("sweep", _sweep_text(profile)))
    if held := sum(layer.cache_bytes for layer in profile.layers):
        pairs.append(("key-value cache", f"{format_bytes(held)} for each token of a row"))
    return pairs


def _sizes_text(profile: Profile) -> str:
    """Return the sizes of the input, and how to have others where nobody chose any."""
    text = ", ".join(f"{name} {value}" for name, value in profile.sizes)
    if "batch" in dict(profile.sizes) and profile.model.batch_size is None:
        text += " (that of the example inputs: --batch-size sets another)"
    return text


def _step_text(profile: Profile) -> str:
    forward = sum(layer.forward.median_s for layer in profile.layers)
    text = format_seconds(forward) + " forward"
    if profile.training:
        text += f" + {format_seconds(total_s(profile) - forward)} backward"
    if profile.whole is not None:
        text += f" (layers sum to {profile.whole.ratio:.2f}× the whole)"
    return text


def _calibration_text(calibration: Calibration) -> str:
    """Return how exported code runs against what its layers promise."""
    change = calibration.ratio - 1
    if abs(change) < 0.005:
        text = "exported code runs as fast as the traced layers"
    else:
        word = "slower" if change > 0 else "faster"
        text = f"exported code runs {format_share(abs(change))} {word} than the traced layers"
    ratios = [group.ratio for group in calibration.groups]
    if len(ratios) > 1:
        text += f" ({len(ratios)} groups: {min(ratios):.2f} to {max(ratios):.2f}×)"
    return text


def _missed_precision(profile: Profile) -> bool:
    """Return whether a remark already tells of a precision worse than was asked for."""
    return any(note.startswith("precision ") for note in profile.notes)


def _precision_text(profile: Profile) -> str:
    """Return how well the sum over layers is known, from the spread of their samples."""
    samples = min(layer.forward.samples for layer in profile.layers)
    counted = f"{count(samples, 'sample')} of each layer at least"
    if samples < 2:
        return counted
    return f"±{format_share(precision(profile))} of the sum, {counted}"


def _sweep_text(profile: Profile) -> str:
    values: dict[str, set[int]] = defaultdict(set)
    for point in profile.sweep:
        for name, value in point.sizes:
            values[name].add(value)
    return "; ".join(f"{name} {', '.join(map(str, sorted(v)))}" for name, v in values.items())


def _slowest(profile: Profile, top: int) -> Table:
    """Return the layers that take most, those alike on one line."""
    groups: dict[str, list[LayerProfile]] = defaultdict(list)
    for layer in profile.layers:
        groups[layer.structure].append(layer)
    kinds = sorted(groups.values(), key=_group_s, reverse=True)
    total = total_s(profile) or 1.0
    largest = _group_s(kinds[0]) or 1.0
    title = f"Most time, of {count(len(profile.layers), 'layer')}, {len(kinds)} different"
    table = grid(title)
    table.add_column("layer", overflow="fold")
    for heading in ("", "share", "forward", "backward", "weights", "saved"):
        table.add_column(heading, justify="right", no_wrap=True)
    sizes = {storage.index: storage.nbytes for storage in profile.storages}
    weights = _weights(profile)
    for alike in kinds[:top]:
        layer, seconds = alike[0], _group_s(alike)
        table.add_row(
            Text(layer.name if layer.source == _usual(profile) else _marked(layer)),
            f"× {len(alike)}" if len(alike) > 1 else "",
            Text(format_share(seconds / total), style=heat(seconds / largest)),
            format_seconds(layer.forward.median_s),
            format_seconds(layer.backward.median_s),
            format_bytes(weights[layer.name]),
            format_bytes(sum(sizes[index] for index in layer.saved)),
        )
    return table


def _usual(profile: Profile) -> str:
    """Return where the times of a profile come from but for the layers that are marked."""
    return "modelled" if profile.device.clock == "model" else "measured"


def _marked(layer: LayerProfile) -> str:
    return f"{layer.name} ({layer.source})"


def _group_s(layers: list[LayerProfile]) -> float:
    return sum(layer_s(layer) for layer in layers)


def _weights(profile: Profile) -> dict[str, int]:
    weights: dict[str, int] = defaultdict(int)
    for state in profile.states:
        for layer in state.layers:
            weights[layer] += state.nbytes
    return weights
