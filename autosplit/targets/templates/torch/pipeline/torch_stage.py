"""A stage as torch's schedules know it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor
from torch.distributed.pipelining import PipelineStage

from .clock import Clock


class TorchStage(PipelineStage):
    """A stage that also runs forward alone where its neighbour is on the same rank.

    In ``eval`` torch walks through a schedule's backwards too and each of them does nothing,
    but between two stages of one rank it hands over gradients that do not exist.
    """

    clock: Clock | None = None
    """Measures what the stage computes in training."""

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one forward."""
        with self._timed():
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run one backward, of inputs and weights or of inputs alone."""
        with self._timed():
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Run what a backward has put off."""
        with self._timed():
            return super().backward_weight_one_chunk(*args, **kwargs)

    def _timed(self) -> AbstractContextManager[None]:
        timed = self.clock is not None and self.has_backward
        return self.clock.running() if self.clock is not None and timed else nullcontext()

    def get_local_bwd_output(self, mb_index: int) -> tuple[Tensor | None, ...]:
        """Return the gradients of what the stage received; nothing without backward."""
        if not self.has_backward:
            return ()
        found = super().get_local_bwd_output(mb_index)  # type: ignore[no-untyped-call]
        return tuple(found)

    def set_local_bwd_input(
        self, next_stage_bwd_outputs: tuple[Tensor | None, ...], mb_index: int
    ) -> None:
        """Take the gradients of what the stage gave; nothing without backward."""
        if self.has_backward:
            super().set_local_bwd_input(next_stage_bwd_outputs, mb_index)
