"""What can be asked of a profiler, and the registry of profilers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from autosplit.checks import require, require_finite
from autosplit.registry import Registry

if TYPE_CHECKING:
    from autosplit.journal import Journal
    from autosplit.layers import Grouping
    from autosplit.profilers.summary import Findings
    from autosplit.tracers.base import Trace

Progress: TypeAlias = Callable[[int, int, str], None]
"""Called with steps done, steps in all as far as known, and what is being done."""


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """What is measured, where and how precisely.

    Parameters
    ----------
    device
        "cpu", "cuda", "cuda:1", …, or "auto" (a GPU where there is one).
    threads
        CPU threads that a stage will have. With one, CPU time of the thread is read, which
        other programs on the machine do not disturb; with more, wall time.
    min_repetitions, max_repetitions
        How often every layer is timed at least, and at most.
    min_samples
        Samples that the layers with nine tenths of the time have at least; those that are alike
        share theirs, so that deep models need few repetitions.
    precision
        Repeat until the sum of all layers is known to this share (with a confidence of 90 %).
    max_seconds
        Repeat no longer than this, the least repetitions excepted.
    inference
        Forward only, in evaluation mode.
    resident_bytes
        State that is in memory at once while a model on meta is measured; one layer alone may
        need more.
    granularity
        Smallest piece that the planner may move, as in ``layers.group``.
    analytic
        Device of the table (``hardware.devices``) for which times are modelled; nothing is
        measured then.
    factors
        File of the shares of its peak that the device reaches; assumed where None.
    compile
        Whether each layer is compiled (``torch.compile``) before it is timed.
    calibrate
        Whether exported code of some groups of layers is timed too, and layers are scaled to it
        in a stage (``workflow.calibrating``).
    """

    device: str = "auto"
    threads: int = 1
    min_repetitions: int = 3
    max_repetitions: int = 40
    min_samples: int = 10
    precision: float = 0.02
    max_seconds: float = 120.0
    inference: bool = False
    resident_bytes: int = 2 * 2**30
    granularity: Literal["op", "layer", "block"] = "layer"
    analytic: str | None = None
    factors: str | None = None
    compile: bool = False
    calibrate: bool = False

    def __post_init__(self) -> None:
        require_finite(self, "threads", "min_repetitions", "max_repetitions", minimum=1)
        require_finite(self, "precision", "max_seconds", "resident_bytes")
        require(
            self,
            self.min_repetitions <= self.max_repetitions,
            f"min_repetitions ({self.min_repetitions}) is above max_repetitions "
            f"({self.max_repetitions})",
        )


class Profiler(Protocol):
    """A way to learn what each layer of a model costs."""

    def findings(
        self,
        trace: Trace,
        grouping: Grouping,
        options: ProfileOptions,
        progress: Progress,
        journal: Journal,
    ) -> Findings:
        """Return time and memory of every layer of ``grouping``, at the sizes of ``trace``.

        What ``journal`` holds is not measured again; what is measured is added to it.
        """
        ...


PROFILERS: Registry[type[Profiler]] = Registry("profiler")
