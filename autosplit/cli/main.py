"""The command line: finds the command, and turns every failure into a message and a status."""

from __future__ import annotations

import difflib
import errno
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from types import FrameType
from typing import Any

import click

from autosplit import __version__
from autosplit.cli.console import Terminal
from autosplit.cli.options import common_options
from autosplit.errors import AutosplitError, ExitCode, UsageError

_MACHINERY = sys.stdlib_module_names | {
    *("click", "highspy", "networkx", "numpy", "pulp", "rich", "safetensors", "sympy", "torch"),
}
"""Packages whose errors are those of who calls them."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = ("profile", "plan", "export", "verify", "show", "checkpoint", "device", "cluster")

HELP = """Turn a PyTorch model that is too big or too slow for one GPU into a pipeline.

\b
  autosplit profile model.py:build -o profile.json
  autosplit plan profile.json --stages 4 -o plan.json
  autosplit export plan.json -o pipeline
  autosplit verify pipeline

Exit status: 0 done, 1 failure, 2 usage, 3 the model cannot be traced, 4 no plan fits,
5 verification failed, 130 interrupted.
"""


class Application(click.Group):
    """The group of commands, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order in which they are used."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command's module and return the command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"autosplit.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command, or say which one was probably meant."""
        close = difflib.get_close_matches(args[0], COMMANDS, n=1)
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
            raise UsageError(f"no command {args[0]!r}", hint=hint)
        return super().resolve_command(ctx, args)

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> int:
        """Run a command; failures become a message on standard error and an exit status."""
        terminal = extra.setdefault("obj", Terminal())
        run = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **extra)
        with warnings.catch_warnings():
            warnings.showwarning = partial(_tell, terminal)
            status = guard(terminal, run)
        if standalone_mode:
            sys.exit(status)
        return status


def guard(terminal: Terminal, run: Callable[[], Any]) -> int:
    """Run a command and return its exit status; the one place where errors are caught."""
    try:
        status = run()
        return int(status) if isinstance(status, int) else ExitCode.OK
    except click.Abort:
        terminal.say("interrupted")
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        failure = _usage(error)
    except AutosplitError as error:
        if terminal.traceback:
            raise
        failure = error
    except Exception as error:
        if terminal.traceback:
            raise
        failure = _surprise(error)
    terminal.fail(failure)
    return failure.exit_code


def _tell(terminal: Terminal, message: Warning | str, *_: object, **__: object) -> None:
    """Show what libraries warn of to those who want details."""
    terminal.detail(f"warning: {message}")


def _surprise(error: Exception) -> AutosplitError:
    """Return an error for what nobody expected: a full disk, faulty code of the user, or ours."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return AutosplitError("cannot write the output", cause=error.strerror)
    frame, line = _culprit(error)
    if frame.f_globals.get("__name__", "").partition(".")[0] != __package__.partition(".")[0]:
        return AutosplitError(
            f"{frame.f_code.co_filename}:{line} fails",
            cause=f"{type(error).__name__}: {error}",
            hint="run again with --traceback to see the calls that lead there",
        )
    return AutosplitError(
        f"unexpected {type(error).__name__}: {error}",
        cause="this is a fault in autosplit",
        hint="run again with --traceback and report what it prints",
    )


def _culprit(error: Exception) -> tuple[FrameType, int]:
    """Return the innermost frame that is no library's, and its line."""
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [
        (frame, line)
        for frame, line in frames
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _MACHINERY
    ]
    return (own or frames)[-1]


def _usage(error: click.ClickException) -> AutosplitError:
    """Return click's error in the form of ours."""
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help tells what it takes" if context else None
    return UsageError(error.format_message(), hint=hint)


@click.group(
    cls=Application,
    params=common_options(),
    help=HELP,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(__version__, "-V", "--version", prog_name="autosplit")
@click.pass_context
def cli(context: click.Context) -> None:
    """Show the help where no command is given; the commands do the work."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        # What an encoding lacks, as ASCII lacks bars, is no reason to fail.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    cli(prog_name="autosplit")
