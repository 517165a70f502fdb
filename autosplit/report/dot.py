"""The graph of layers in the DOT language, for Graphviz: ``dot -Tsvg graph.dot``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from autosplit.report.advice import layer_s
from autosplit.types import LayerProfile, Plan, Profile
from autosplit.units import format_bytes, format_seconds

_COLOURS = ("#dbeafe", "#dcfce7", "#fef9c3", "#fee2e2", "#f3e8ff", "#e0f2fe", "#ffedd5", "#f1f5f9")


def graph_dot(profile: Profile, plan: Plan | None = None) -> str:
    """Return layers as boxes and values as edges, by stage where there is a plan.

    Layers that only an order of writes connects stand on a dashed edge.
    """
    stage_of = (
        {name: index for index, stage in enumerate(plan.stages) for name in stage.layers}
        if plan
        else {}
    )
    lines = [
        "digraph model {",
        '  node [shape=box, style="rounded,filled", fillcolor=white, fontname="sans-serif"];',
        '  edge [fontname="sans-serif", fontsize=10];',
        *_boxes(profile, stage_of),
        *_edges(profile, stage_of),
        "}",
    ]
    return "\n".join(lines) + "\n"


def _boxes(profile: Profile, stage_of: Mapping[str, int]) -> Iterator[str]:
    boxes = {layer.name: _box(layer) for layer in profile.layers}
    if not stage_of:
        yield from (f"  {box}" for box in boxes.values())
        return
    for stage in sorted(set(stage_of.values())):
        yield f"  subgraph cluster_{stage} {{"
        yield f'    label="stage {stage}"; style=filled; color="{_COLOURS[stage % len(_COLOURS)]}";'
        yield from (f"    {box}" for name, box in boxes.items() if stage_of.get(name) == stage)
        yield "  }"


def _box(layer: LayerProfile) -> str:
    label = "\n".join([layer.name, format_seconds(layer_s(layer))])
    return f"{_quoted(layer.name)} [label={_quoted(label)}];"


def _edges(profile: Profile, stage_of: Mapping[str, int]) -> Iterator[str]:
    for value in profile.values:
        if value.producer is None:
            continue
        for reader in value.consumers:
            cut = bool(stage_of) and stage_of[value.producer] != stage_of[reader]
            cut = cut and not value.made_again
            style = ", penwidth=2, color=red" if cut else ""
            yield (
                f"  {_quoted(value.producer)} -> {_quoted(reader)} "
                f"[label={_quoted(format_bytes(value.nbytes))}{style}];"
            )
    for before, after in profile.order_edges:
        yield f"  {_quoted(before)} -> {_quoted(after)} [style=dashed];"


def _quoted(text: str) -> str:
    """Return a string of the DOT language: JSON escapes the same characters."""
    return json.dumps(text, ensure_ascii=False)
