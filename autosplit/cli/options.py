"""Parameter types and options that commands share."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from autosplit import cluster, units
from autosplit.cli.console import Terminal
from autosplit.errors import AutosplitError

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command that knows the options every command has."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["params"] = [*kwargs.get("params", ()), *common_options()]
        super().__init__(*args, **kwargs)


def common_options() -> list[click.Parameter]:
    """Return fresh ``-v``, ``-q``, ``--color`` and ``--traceback`` options."""
    return [
        _setting("-v", "--verbose", help="Say more.", count=True, change=_louder),
        _setting("-q", "--quiet", help="Say errors only.", count=True, change=_quieter),
        _setting("--color/--no-color", help="Colour on or off.", default=None, change=_color),
        _setting("--traceback", help="Show the stack of an error.", is_flag=True, change=_stack),
    ]


def _setting(*names: str, change: Callable[[Terminal, Any], None], **kwargs: Any) -> click.Option:
    def apply(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if ctx.get_parameter_source(str(param.name)) is not ParameterSource.DEFAULT:
            change(ctx.ensure_object(Terminal), value)

    return click.Option(
        names, expose_value=False, is_eager=True, show_default=False, callback=apply, **kwargs
    )


def _louder(terminal: Terminal, value: int) -> None:
    terminal.verbosity += value


def _quieter(terminal: Terminal, value: int) -> None:
    terminal.verbosity -= value


def _color(terminal: Terminal, value: bool) -> None:
    terminal.color = value


def _stack(terminal: Terminal, value: bool) -> None:
    terminal.traceback = value


# ---------------------------------------------------------------- parameter types


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A number with a unit, read by one of the parsers of ``autosplit.units``."""

    def __init__(self, name: str, parse: Callable[[str], float | None]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number in base units."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except AutosplitError as error:
            reason = error.hint or error.cause
            self.fail(f"{error.message}; {reason}" if reason else error.message, param, ctx)


BYTES = Quantity("bytes", units.parse_bytes)
RATE = Quantity("bytes/s", lambda text: None if text == "free" else units.parse_rate(text))
"""None stands for a link that costs nothing."""
LATENCY = Quantity("time", units.parse_latency)
SECONDS = Quantity("time", units.parse_seconds)


class LazyChoice(click.ParamType):  # type: ignore[type-arg]
    """One of the names that a module offers, imported only when the option is used.

    Parameters
    ----------
    kind
        What is chosen, for messages.
    place
        ``module:attribute`` of a registry or mapping.
    extra
        Names accepted besides its own ("auto").
    """

    def __init__(self, kind: str, place: str, extra: Iterable[str] = ()) -> None:
        self.name = kind
        self._place = place
        self._extra = tuple(extra)

    def names(self) -> tuple[str, ...]:
        """Return every name that may be chosen."""
        module, _, attribute = self._place.partition(":")
        return (*self._extra, *getattr(import_module(module), attribute))

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the choices as shown in help."""
        return f"[{'|'.join(self.names())}]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name if it is known."""
        names = self.names()
        if value not in names:
            close = difflib.get_close_matches(str(value), names, n=1)
            guess = f" Did you mean {close[0]!r}?" if close else ""
            self.fail(f"{value!r} is not one of {', '.join(names)}.{guess}", param, ctx)
        return value

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Offer the names that begin like what was typed."""
        return [CompletionItem(name) for name in self.names() if name.startswith(incomplete)]


class Assignment(click.ParamType):  # type: ignore[type-arg]
    """``NAME=VALUE``, the value a whole number from 0 where ``number``."""

    def __init__(self, name: str, *, number: bool = False) -> None:
        self.name = name
        self._number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return ``(name, value)``."""
        if not isinstance(value, str):
            return value
        name, equals, text = value.rpartition("=")
        if not name or not equals or not text or (self._number and not text.isdecimal()):
            form = self.name.upper()
            self.fail(f"{value!r} is not {form}{', counted from 0' * self._number}", param, ctx)
        return name, int(text) if self._number else text


class CommaList(click.ParamType):  # type: ignore[type-arg]
    """Names between commas."""

    name = "name,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the names as a tuple."""
        if not isinstance(value, str):
            return value
        names = tuple(part.strip() for part in value.split(",") if part.strip())
        if not names:
            self.fail(f"{value!r} names nothing", param, ctx)
        return names


class CommaNumbers(click.ParamType):  # type: ignore[type-arg]
    """Whole numbers from 1, between commas."""

    name = "n,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the numbers, ascending, as a tuple."""
        if not isinstance(value, str):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts):
            self.fail(f"{value!r} is not one or several whole numbers, such as 1,2,4", param, ctx)
        return tuple(sorted({int(part) for part in parts}))


def _verbatim(text: str) -> str:
    """Return a text with the marks that keep click from wrapping its paragraphs."""
    return "\n\n".join(f"\b\n{part}" for part in text.strip().split("\n\n"))


CLUSTER_FILE = "A file for --cluster; [links] and [[link]] may be left out:\n\n" + _verbatim(
    cluster.EXAMPLE
)
"""Epilog of the commands that take one."""


CLUSTER_PATH = "autosplit.cluster_path"
"""Where the context of a command tells the file that its cluster came from."""


class ClusterFile(click.ParamType):  # type: ignore[type-arg]
    """A TOML file of devices and links."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the cluster, and note its file, that no output may replace."""
        if not isinstance(value, str):
            return value
        if ctx is not None:
            ctx.meta[CLUSTER_PATH] = (value,)
        return cluster.read(value)


# ---------------------------------------------------------------- shared options

FILE = click.Path(path_type=Path)

force = click.option("--force", is_flag=True, help="Replace what is already there.")
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
ignore_extra = click.option(
    "--ignore-extra", is_flag=True, help="Leave out tensors that the model does not have."
)
weights_dtype = click.option(
    "--weights-dtype",
    type=click.Choice(["same", "model"]),
    default="same",
    help="Tensors of another dtype than the model's: refuse them, or convert them to it.",
)
