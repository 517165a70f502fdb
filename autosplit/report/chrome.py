"""A simulated step as a Chrome trace: open it in Perfetto or ``chrome://tracing``.

Format: "Trace Event Format", complete events (``ph: X``) with times in microseconds.
"""

from __future__ import annotations

from typing import Any

from autosplit.simulate import Event, Timeline

_LETTER = {"forward": "F", "backward": "B", "weight": "W", "send": "send", "receive": "recv"}


def trace_data(timeline: Timeline) -> dict[str, Any]:
    """Return a timeline as JSON data: a process for each rank, links on a thread of their own."""
    ranks = sorted({event.rank for event in timeline.events})
    names = [
        {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
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
        "traceEvents": [*names, *(_event(event) for event in timeline.events)],
    }


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
