"""Bars and marks that tables and trees share."""

from __future__ import annotations

from rich.text import Text

from autosplit.report.styles import GOOD, HOT, WARM

_EIGHTHS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int = 12) -> Text:
    """Return a bar that fills ``share`` of ``width``, coloured by how much that is."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    filled = "█" * full + (_EIGHTHS[rest] if rest else "")
    return Text(filled.ljust(width), style=heat(share))


def heat(share: float) -> str:
    """Return the style of a value that is ``share`` of the largest."""
    if share >= 0.995:
        return HOT
    return WARM if share >= 0.75 else GOOD
