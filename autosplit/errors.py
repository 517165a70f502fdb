"""The one error type that reaches a user, and the exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit status of every ``autosplit`` command."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    TRACE = 3
    INFEASIBLE = 4
    VERIFICATION = 5
    INTERRUPTED = 130


class AutosplitError(Exception):
    """Something a user can understand and act on.

    Parameters
    ----------
    message
        What went wrong, in one line, with the numbers that matter.
    cause
        Why it went wrong.
    hint
        What to try next.
    exit_code
        Status with which the command line ends.
    """

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(
        self,
        message: str,
        *,
        cause: str | None = None,
        hint: str | None = None,
        exit_code: ExitCode | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.cause = cause
        self.hint = hint
        if exit_code is not None:
            self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [self.message]
        if self.cause:
            lines.append(f"  cause: {self.cause}")
        if self.hint:
            lines.append(f"  hint:  {self.hint}")
        return "\n".join(lines)


class UsageError(AutosplitError):
    """An option or argument that cannot be meant."""

    exit_code = ExitCode.USAGE


class DataError(AutosplitError):
    """A file or value that is not what it should be."""


class TraceError(AutosplitError):
    """A model that cannot be traced."""

    exit_code = ExitCode.TRACE


class InfeasibleError(AutosplitError):
    """No plan meets the budget or the constraints."""

    exit_code = ExitCode.INFEASIBLE


class VerificationError(AutosplitError):
    """An export that does not equal the original model."""

    exit_code = ExitCode.VERIFICATION
