"""What all tables are made of."""

from __future__ import annotations

from rich import box
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autosplit.report.styles import HINT, LABEL, STRONG
from autosplit.types import ModelRef


def grid(title: str | None = None) -> Table:
    """Return an empty table in the house style."""
    return Table(
        title=title,
        title_justify="left",
        title_style=STRONG,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        show_edge=False,
        min_width=len(title) if title else None,
    )


def facts(pairs: list[tuple[str, RenderableType]]) -> Table:
    """Return labelled facts, one a line."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=LABEL, no_wrap=True)
    table.add_column()
    for label, value in pairs:
        table.add_row(label, value)
    return table


def remarks(lines: tuple[str, ...]) -> list[RenderableType]:
    """Return remarks as a bulleted list, set off by an empty line."""
    if not lines:
        return []
    listed = Table.grid(padding=(0, 1))
    for line in lines:
        listed.add_row(Text("•", style=HINT), Text(line))
    return [Padding(listed, (1, 0, 0, 0))]


def model_name(model: ModelRef) -> str:
    """Return a model's spec with its batch size, without the folders of a file."""
    name = model.spec.rsplit("/", 1)[-1]
    return f"{name}, batch size {model.batch_size}" if model.batch_size else name


def count(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
