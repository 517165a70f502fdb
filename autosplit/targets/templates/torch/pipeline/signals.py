"""A request to stop, by signal to one rank or to the launcher."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import torch
import torch.distributed as dist

STOP_FILE = "PIPELINE_STOP_FILE"
"""Names the file by which ``launch.py`` asks its ranks to stop."""


_PATIENCE_S = 2.0


class Stop:
    """Notices SIGTERM and SIGINT; the step under way is finished."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._file = os.environ.get(STOP_FILE, "")
        self._signalled = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
        if self._file:
            timer = threading.Timer(_PATIENCE_S, self._end_unless_asked)
            timer.daemon = True
            timer.start()

    def _end_unless_asked(self) -> None:
        """End now where the launcher was not signalled: then it ends the ranks after a failure."""
        if not os.path.exists(self._file):
            os._exit(128 + signal.SIGTERM)

    def asked(self) -> bool:
        """Return whether any rank was asked to stop; all ranks call it after each step."""
        mine = self._signalled or (self._file and os.path.exists(self._file))
        flag = torch.tensor([int(bool(mine))], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
