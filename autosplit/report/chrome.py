"""Layers or a simulated step as a Chrome trace: open it in Perfetto or ``chrome://tracing``.

Format: "Trace Event Format", complete events (``ph: X``) with times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autosplit.simulate import Event, Timeline
from autosplit.types import Profile
from autosplit.units import format_share

_LETTER = {"forward": "F", "backward": "B", "weight": "W", "send": "send", "receive": "recv"}


def trace_data(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON data: a process for each rank, links on a thread of their own.

    Each rank names its bubble (the share of the step in which it does not compute) and counts
    its bytes over time.
    """
    ranks = sorted({event.rank for event in timeline.events})
    names = [
        {
            "ph": "M",
            "name": "process_name",
            "pid": rank,
            "args": {"name": f"rank {rank}, idle {format_share(timeline.idle(rank))}"},
        }
        for rank in ranks
    ]
    threads = sorted({(event.rank, int(event.on_link)) for event in timeline.events})
    names += [
        {
            "ph": "M",
            "name": "thread_name",
            "pid": rank,
            "tid": thread,
            "args": {"name": "link" if thread else "compute"},
        }
        for rank, thread in threads
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {"step_s": timeline.step_s, "idle": [timeline.idle(rank) for rank in ranks]},
        "traceEvents": [
            *names,
            *(_event(event) for event in timeline.events),
            *(counter for rank in ranks for counter in _memory(timeline, rank)),
        ],
    }


def _memory(timeline: Timeline, rank: int) -> Iterator[dict[str, Any]]:
    """Yield the bytes of a rank over time; what it always holds and what it keeps add up."""
    static = timeline.static_bytes[rank]
    for time_s, held in (*timeline.memory[rank], (timeline.step_s, timeline.memory[rank][-1][1])):
        yield {
            "ph": "C",
            "name": "memory",
            "pid": rank,
            "ts": 1e6 * time_s,
            "args": {"static_bytes": static, "activation_bytes": held},
        }


def profile_trace(profile: Profile) -> dict[str, Any]:
    """Return the layers of a profile one after another: all forwards, then all backwards.

    Times are medians; on a device nothing stands between two layers but what they take alone.
    """
    passes = [("forward", layer, layer.forward) for layer in profile.layers]
    if profile.training:
        passes += [("backward", layer, layer.backward) for layer in reversed(profile.layers)]
    events: list[dict[str, Any]] = []
    start_s = 0.0
    for kind, layer, timing in passes:
        events.append(
            {
                "ph": "X",
                "name": layer.name,
                "cat": kind,
                "pid": 0,
                "tid": 0,
                "ts": 1e6 * start_s,
                "dur": 1e6 * timing.median_s,
                "args": {
                    "structure": layer.structure,
                    "spread_us": 1e6 * timing.spread_s,
                    "workspace_bytes": layer.workspace_bytes,
                },
            }
        )
        start_s += timing.median_s
    name = {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": profile.device.name}}
    return {"displayTimeUnit": "ms", "traceEvents": [name, *events]}


def _event(event: Event) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": _name(event),
        "cat": event.kind,
        "pid": event.rank,
        "tid": int(event.on_link),
        "ts": 1e6 * event.start_s,
        "dur": 1e6 * (event.end_s - event.start_s),
        "args": {"stage": event.stage, "microbatch": event.microbatch},
    }


def _name(event: Event) -> str:
    if event.kind == "sync":
        return "sum gradients"
    return f"{_LETTER[event.kind]}{event.microbatch} stage {event.stage}"
