"""Profiles and plans as comma-separated values, one layer or stage a line, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence

from autosplit.types import Plan, Profile

_LAYER = (
    "layer",
    "module",
    "block",
    "structure",
    "forward_s",
    "forward_spread_s",
    "backward_s",
    "backward_spread_s",
    "samples",
    "flops",
    "state_bytes",
    "saved_bytes",
    "workspace_bytes",
    "cache_bytes",
    "weight_gradient_s",
    "source",
)
_STAGE = (
    "stage",
    "rank",
    "device",
    "layers",
    "forward_s",
    "backward_s",
    "send_s",
    "idle",
    "in_flight",
    "memory_bytes",
)


def profile_csv(profile: Profile) -> str:
    """Return a line for each layer, in running order, under a line of names."""
    state: dict[str, int] = defaultdict(int)
    for item in profile.states:
        for layer in item.layers:
            state[layer] += item.nbytes
    sizes = {storage.index: storage.nbytes for storage in profile.storages}
    return _text(
        _LAYER,
        (
            (
                layer.name,
                layer.module,
                layer.block or "",
                layer.structure,
                layer.forward.median_s,
                layer.forward.spread_s,
                layer.backward.median_s,
                layer.backward.spread_s,
                layer.forward.samples,
                "" if layer.flops is None else layer.flops,
                state[layer.name],
                sum(sizes[index] for index in layer.saved),
                layer.workspace_bytes,
                layer.cache_bytes,
                layer.weight_gradient_s,
                layer.source,
            )
            for layer in profile.layers
        ),
    )


def plan_csv(plan: Plan) -> str:
    """Return a line for each stage under a line of names."""
    return _text(
        _STAGE,
        (
            (
                index,
                stage.rank,
                stage.device or "",
                " ".join(stage.layers),
                stage.forward_s,
                stage.backward_s,
                stage.send_s,
                stage.idle,
                stage.in_flight,
                stage.memory.total_bytes,
            )
            for index, stage in enumerate(plan.stages)
        ),
    )


def _text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return stream.getvalue()
