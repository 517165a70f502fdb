"""The one error of this package."""


class PipelineError(RuntimeError):
    """Something that the person who started the pipeline can put right."""
