"""The error of code generation."""

from autosplit.errors import AutosplitError


class CodegenError(AutosplitError):
    """A stage that cannot be written as Python source."""
