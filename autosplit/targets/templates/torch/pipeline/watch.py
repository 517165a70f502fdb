"""Finds out which rank keeps the others waiting, and where in its code it is."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any

import torch.distributed as dist

_ASK_S = 0.5
_ANSWER_S = 5.0
_WAITING = (os.path.join("torch", "distributed"), __file__)


class Watch(threading.Thread):
    """Answers, beside the main thread, where the main thread is.

    It speaks over a connection of its own to the store that torchrun keeps, so that it works
    while the main thread waits. A rank that is stopped or stuck in a system call that blocks
    the interpreter does not answer, which tells as much.
    """

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(name="watch", daemon=True)
        self.rank = rank
        self.world = world
        self.ended = threading.Event()
        self.main = threading.main_thread().ident
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.prefix = f"pipeline/{restart}"
        self.store: Any = dist.TCPStore(  # type: ignore[attr-defined]
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=_ANSWER_S),
        )

    def run(self) -> None:
        """Wait to be asked, answer once."""
        try:
            while not self.ended.wait(_ASK_S):
                if self.store.check([f"{self.prefix}/asked"]):
                    self.store.set(f"{self.prefix}/{self.rank}", self._place())
                    return
        except RuntimeError:  # The store has ended, and with it the run.
            return

    def ask(self) -> dict[int, str]:
        """Return where each rank is that answers; "" for one that waits for others."""
        self.store.set(f"{self.prefix}/asked", "1")
        found: dict[int, str] = {}
        end = time.monotonic() + _ANSWER_S
        while len(found) < self.world and time.monotonic() < end:
            for rank in range(self.world):
                key = f"{self.prefix}/{rank}"
                if rank not in found and self.store.check([key]):
                    found[rank] = self.store.get(key).decode()
            time.sleep(0.1)
        return found

    def _place(self) -> str:
        frame = sys._current_frames().get(self.main or 0)
        frames = traceback.extract_stack(frame)
        if any(part in each.filename for each in frames for part in _WAITING):
            return ""
        last = frames[-1]
        own = [each for each in frames if "site-packages" not in each.filename]
        last = own[-1] if own else last
        return f"line {last.lineno} of {last.filename}, in {last.name}"


_watch: Watch | None = None


def start_watch(rank: int, world: int) -> None:
    """Begin to answer for this process."""
    global _watch
    _watch = Watch(rank, world)
    _watch.start()


def stop_watch() -> None:
    """End before the store does."""
    if _watch is not None:
        _watch.ended.set()
        _watch.join()


def blame() -> str | None:
    """Return a sentence that names the ranks that others wait for; None where none is found."""
    if _watch is None:
        return None
    try:
        found = _watch.ask()
    except RuntimeError:
        return None
    silent = [str(rank) for rank in range(_watch.world) if rank not in found]
    if silent:
        return (
            f"rank {', '.join(silent)} ended or does not answer, and others waited for it in vain"
        )
    busy = [f"rank {rank} is at {place}" for rank, place in sorted(found.items()) if place]
    return f"{', and '.join(busy)}, and others waited for it in vain" if busy else None
