"""A request to stop, by signal to one rank or to the launcher."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from .failure import end

STOP_FILE = "PIPELINE_STOP_FILE"
"""Names the file by which ``launch.py`` asks its ranks to stop."""

_NUMBERS = (signal.SIGTERM, signal.SIGINT)
_PATIENCE_S = 2.0


class Stop:
    """Notices SIGTERM and SIGINT; the step under way is finished, a second signal ends at once.

    A thread reads them, as the main thread may be waiting for another rank.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._file = os.environ.get(STOP_FILE, "")
        self._signalled = False
        if self._file:
            _mark(int(os.environ["LOCAL_RANK"])).write_text(str(os.getpid()), encoding="utf-8")
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        for number in _NUMBERS:
            signal.signal(number, _go_on)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_behave_as_child)
        threading.Thread(target=self._listen, args=(reader,), name="stop", daemon=True).start()

    def asked(self) -> bool:
        """Return whether any rank was asked to stop; all ranks call it after each step."""
        mine = self._signalled or (self._file and os.path.exists(self._file))
        flag = torch.tensor([int(bool(mine))], device=self.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def _listen(self, reader: int) -> None:
        while True:
            (number,) = os.read(reader, 1)
            if number not in _NUMBERS:
                continue
            if self._signalled:
                end(f"ended at once by a second {signal.Signals(number).name}", "echo")
            self._signalled = True
            if self._file:
                timer = threading.Timer(_PATIENCE_S, _end_after_failure)
                timer.daemon = True
                timer.start()


def _end_after_failure() -> None:
    """End now where another rank has failed: torchrun then signals those that are left."""
    if not all(_is_alive(rank) for rank in range(int(os.environ["LOCAL_WORLD_SIZE"]))):
        end("ended because another rank failed", "echo")


def _is_alive(rank: int) -> bool:
    try:
        os.kill(int(_mark(rank).read_text(encoding="utf-8")), 0)
    except (OSError, ValueError):
        return False
    return True


def _mark(rank: int) -> Path:
    """Return the file, beside that of the launcher, in which a rank of this node leaves its pid."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Path(os.environ[STOP_FILE]).with_name(f"{attempt}_{rank}")


def _go_on(number: int, frame: FrameType | None) -> None:
    """Do nothing: the signal is read from the pipe to which Python writes its number."""


def _behave_as_child() -> None:
    """Let workers of a data loader be ended by whom they belong to, and by nobody else."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
