"""From a plan to a verified export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autosplit.artifacts import TO_EDIT, refuse_folder
from autosplit.types import Artifact, Plan, VerificationReport
from autosplit.workflow.files import PathLike, has_text
from autosplit.workflow.models import build, trace_with_weights, trace_without_weights


def export(
    plan: Plan | PathLike,
    output: PathLike,
    *,
    target: str = "torch",
    weights: PathLike | None = None,
    convert_weights: bool = False,
    ignore_extra: bool = False,
    no_rewrite: Sequence[str] = (),
    style: str = "source",
    force: bool = False,
) -> tuple[Artifact, ...]:
    """Write the stages of a plan as a folder that runs by itself.

    Parameters
    ----------
    plan
        A plan, or the path of one.
    output
        Folder to write; written beside and renamed at the end.
    target
        Framework that will run the stages.
    weights
        Weights to write instead of those the model is built with: a ``.safetensors`` file, a
        ``state_dict`` of ``torch.save``, or a Hugging Face folder. They are copied one tensor
        at a time, and the model is built without memory for its parameters.
    convert_weights
        Convert floating-point tensors of ``weights`` to the model's dtype where they have
        another, instead of refusing them.
    ignore_extra
        Leave out tensors of ``weights`` that the model does not have, instead of refusing them.
    no_rewrite
        Rewrites of the emitted text to leave out: "made-again" and those of
        ``autosplit.codegen.REWRITES``.
    style
        "source" writes the stages from the model's operations; "import" lets them run the
        model's own modules as they are wherever these stand whole in a stage.
    force
        Replace ``output`` if it exists.

    Raises
    ------
    DataError
        If the model or its profile has changed since the plan was made.
    AutosplitError
        If ``weights`` are damaged or not exactly the model's, or if the model was profiled on
        meta and does not fit into the memory of this machine.
    """
    from autosplit import weights as storage

    refuse_folder(output, force=force)
    source = None if weights is None else storage.open_weights(weights)
    trace_again = trace_with_weights if source is None else trace_without_weights
    trace, routing, artifacts = build(plan, target, trace_again, no_rewrite, style)
    storage.write_export(
        output,
        artifacts,
        trace,
        routing,
        source=source,
        convert=convert_weights,
        ignore_extra=ignore_extra,
        force=force,
    )
    return artifacts


def render(
    plan: Plan | PathLike,
    *,
    target: str = "torch",
    no_rewrite: Sequence[str] = (),
    style: str = "source",
) -> tuple[Artifact, ...]:
    """Return the text files that ``export`` would write."""
    return build(plan, target, no_rewrite=no_rewrite, style=style)[2]


def stale(
    plan: Plan | PathLike,
    folder: PathLike,
    *,
    target: str = "torch",
    no_rewrite: Sequence[str] = (),
    style: str = "source",
) -> tuple[str, ...]:
    """Return the text files of an export that are missing or not what ``plan`` gives.

    ``data.py``, which is there to be edited, may hold anything.
    """
    return tuple(
        artifact.path
        for artifact in render(plan, target=target, no_rewrite=no_rewrite, style=style)
        if not has_text(path := Path(folder) / artifact.path, artifact.text)
        and not (artifact.path == TO_EDIT and path.is_file())
    )


def verify(
    folder: PathLike,
    *,
    distributed: bool = False,
    schedules: Sequence[str] = (),
    tolerance: float | None = None,
) -> VerificationReport:
    """Run an export against the original model.

    Parameters
    ----------
    folder
        The export.
    distributed
        Run one process per stage instead of one for all.
    schedules
        Schedules to run the processes under; "all" for every one that the ranks of the stages
        fit. By default that of the plan.
    tolerance
        Largest difference that passes; None chooses by dtype.
    """
    from autosplit import verification

    return verification.verify(
        folder, distributed=distributed, schedules=schedules, tolerance=tolerance
    )
