"""Tables that can go into a README as they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np


def show(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table in Markdown, below a title."""
    print(f"\n### {title}\n")
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print(flush=True)


def share(value: float) -> str:
    """Return a share in percent."""
    return f"{value:.1%}"


def median_and_worst(values: Sequence[float]) -> str:
    """Return the median and the largest of some shares."""
    return f"{np.median(values):.1%} / {max(values):.1%}" if len(values) else "-"


def verdict(value: float, limit: float) -> str:
    """Return a share beside the most that it is meant to be."""
    return f"{value:.1%} (≤ {limit:.0%}{'' if value <= limit else ', MISSED'})"
