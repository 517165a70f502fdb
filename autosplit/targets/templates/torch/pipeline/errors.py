"""The one error of this package."""


class PipelineError(RuntimeError):
    """Something that the person who started the pipeline can put right.

    Parameters
    ----------
    message
        What is wrong.
    hint
        What to try next.
    """

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n  hint: {hint}")
        self.message = message
        self.hint = hint
