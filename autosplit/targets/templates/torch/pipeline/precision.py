"""Half precision: which dtype autocast uses, and the scale that keeps fp16 gradients alive."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .errors import PipelineError

AUTOCAST = {"none": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""dtype of autocast by the name on the command line."""

_LOWEST = 2.0**-8


@dataclass
class LossScale:
    """Scale of the loss under fp16; the rule of ``torch.amp.GradScaler``, agreed by all ranks.

    The norm of all gradients is the same number on every rank, so that all skip a step together
    when it is not finite.

    Parameters
    ----------
    value
        The scale.
    good
        Steps since it last changed.
    interval
        Steps without overflow after which it doubles.
    """

    value: float = 65536.0
    good: int = 0
    interval: int = 2000

    def update(self, finite: bool) -> None:
        """Halve after an overflow, double after many steps without one.

        Raises
        ------
        PipelineError
            If halving does not help any more.
        """
        if not finite:
            self.value, self.good = self.value / 2, 0
            if self.value < _LOWEST:
                raise PipelineError(
                    f"gradients overflow in fp16 even where the loss is scaled by {_LOWEST:g}",
                    hint="lower --lr, or train with --autocast bf16",
                )
        elif self.good + 1 >= self.interval:
            self.value, self.good = self.value * 2, 0
        else:
            self.good += 1
