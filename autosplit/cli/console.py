"""Terminal manners: data on standard output, talk on standard error, colour when wanted."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TextColumn
from rich.text import Text

from autosplit.errors import AutosplitError
from autosplit.report.styles import HINT, HOT, LABEL, STRONG, WARM

Report: TypeAlias = Callable[[int, int, str], None]
"""Called with work done, all work, and what is being done."""


_NARROWEST = 20
"""Below this many columns tables lose their text; at none rich prints nothing."""


@dataclass
class Terminal:
    """Streams and wishes of one run of the command line.

    Parameters
    ----------
    verbosity
        Below zero only errors are said, above zero details as well.
    color
        True and False as asked for; None decides by terminal and ``NO_COLOR``.
    traceback
        Let errors through with their stack.
    """

    verbosity: int = 0
    color: bool | None = None
    traceback: bool = False

    @cached_property
    def out(self) -> Console:
        """Console for data."""
        return self._console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """Console for everything said to a person."""
        return self._console(stderr=True)

    def show(self, *renderables: RenderableType) -> None:
        """Print data."""
        for renderable in renderables:
            self.out.print(renderable)

    def write(self, text: str) -> None:
        """Print machine-readable data as it is."""
        self.out.out(text.rstrip("\n"), highlight=False)

    def say(self, text: str | Text) -> None:
        """Talk, unless asked to be quiet."""
        if self.verbosity >= 0:
            self._talk(Text(text) if isinstance(text, str) else text)

    def detail(self, text: str) -> None:
        """Talk when asked for details."""
        if self.verbosity > 0:
            self._talk(Text(text, style=LABEL))

    def warn(self, text: str) -> None:
        """Tell of something that may surprise."""
        self.say(Text.assemble(("warning: ", WARM), text))

    def next_step(self, *command: str, program: str = "autosplit") -> None:
        """Tell which command a user would type next."""
        self.say(Text.assemble("Next: ", (shlex.join((program, *command)), STRONG)))

    def fail(self, error: AutosplitError) -> None:
        """Print an error: what, why and what to try."""
        self._talk(Text.assemble(("error: ", HOT), error.message))
        if error.cause:
            self._talk(Text.assemble(("  cause: ", LABEL), _indent(error.cause)))
        if error.hint:
            self._talk(Text.assemble(("  hint:  ", HINT), _indent(error.hint)))

    @contextmanager
    def step(self, title: str) -> Iterator[Report]:
        """Show progress while a step runs: a bar on a terminal, else a line when verbose.

        The bar is drawn when the step reports and at no other time: a thread that draws would
        disturb what is being measured.
        """
        started = time.monotonic()
        if self.verbosity < 0 or not self.err.is_terminal:
            self.detail(f"{title} …")
            yield lambda done, total, what: None
        else:
            with Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[what]}", markup=False),
                console=self.err,
                auto_refresh=False,
                transient=True,
            ) as bar:
                task = bar.add_task(title, total=1, what="")
                bar.refresh()

                def report(done: int, total: int, what: str) -> None:
                    bar.update(task, completed=done, total=max(total, 1), what=what, refresh=True)

                yield report
        self.detail(f"{title}: {time.monotonic() - started:.1f} s")

    def _console(self, *, stderr: bool) -> Console:
        plain = self.color is False or (self.color is None and bool(os.environ.get("NO_COLOR")))
        return Console(
            stderr=stderr,
            highlight=False,
            force_terminal=True if self.color else None,
            color_system=None if plain else "auto",
            width=_NARROWEST if _columns() < _NARROWEST else None,
        )

    def _talk(self, text: Text) -> None:
        self.err.print(text, soft_wrap=True)


def _columns() -> int:
    """Return the width that the environment asks for; rich itself finds that of a terminal."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() else _NARROWEST


def _indent(text: str) -> str:
    return text.replace("\n", "\n         ")
