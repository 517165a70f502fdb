"""What ``verify`` found: the largest differences between an export and the original model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autosplit.checks import require_finite
from autosplit.errors import VerificationError


@dataclass(frozen=True, slots=True)
class Comparison:
    """Tensors of one kind, compared one by one.

    Parameters
    ----------
    kind
        What was compared.
    compared
        Number of tensors.
    largest
        Largest difference of an element, divided by the largest magnitude in the original
        tensor where that is above 1.
    worst
        Name of the tensor with that difference; None when all are equal bit by bit.
    faults
        What no number expresses: a tensor that is missing, of another shape or dtype, not
        finite, or a gradient on one side only.
    """

    kind: Literal["outputs", "loss", "gradients", "buffers", "checkpoint"]
    compared: int
    largest: float
    worst: str | None = None
    faults: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_finite(self, "compared", "largest")

    def passes(self, tolerance: float) -> bool:
        """Return whether the two sides are equal within ``tolerance``."""
        return not self.faults and self.largest <= tolerance


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """One run of the export and of the original model on the same micro-batches.

    Parameters
    ----------
    mode
        "train" (forward and backward) or "eval" (forward alone).
    batch_size
        Rows of one micro-batch; None where the model has no batch dimension.
    microbatches
        Number of micro-batches.
    comparisons
        One per kind of tensor.
    schedule
        Schedule under which the stages ran in processes of their own; None when they ran one
        after another in one process.
    """

    mode: Literal["train", "eval"]
    batch_size: int | None
    microbatches: int
    comparisons: tuple[Comparison, ...]
    schedule: str | None = None


@dataclass(frozen=True)
class VerificationReport:
    """All that ``verify`` compared.

    Parameters
    ----------
    folder
        The export.
    distributed
        Whether the stages ran in processes of their own too.
    tolerance
        Largest difference that passes.
    checkpoint
        The merged checkpoint against the original model's ``state_dict``.
    checks
        One per mode and batch size, and per schedule.
    skipped
        Checks that could not be made, each with its reason.
    """

    folder: str
    distributed: bool
    tolerance: float
    checkpoint: Comparison
    checks: tuple[BatchCheck, ...]
    skipped: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require_finite(self, "tolerance")

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """Every comparison, the checkpoint first."""
        return (self.checkpoint, *(each for check in self.checks for each in check.comparisons))

    @property
    def passed(self) -> bool:
        """Whether everything is equal within the tolerance."""
        return all(each.passes(self.tolerance) for each in self.comparisons)

    def raise_if_failed(self) -> None:
        """Raise when something differs.

        Raises
        ------
        VerificationError
            Naming the first kind of tensor that differs, and by how much.
        """
        for each in self.comparisons:
            if not each.passes(self.tolerance):
                raise VerificationError(
                    f"{each.kind} of {self.folder} differ from the original model",
                    cause=each.faults[0]
                    if each.faults
                    else f"{each.worst} differs by {each.largest:.3g}, "
                    f"more than {self.tolerance:.3g}",
                    hint="export again with --force if files or the model were changed since",
                )
