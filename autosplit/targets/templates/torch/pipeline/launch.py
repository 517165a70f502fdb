"""torchrun for this folder: ``python -m pipeline.launch`` with the options of torchrun.

It ends with one line that names the rank at fault, and hands a signal on to the ranks as a
request to finish their step, save and stop.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousError

from .failure import LAUNCHED
from .signals import STOP_FILE

_torchrun: Any = importlib.import_module("torch.distributed.run")


def main(arguments: list[str]) -> int:
    """Run torchrun; return the exit status."""
    os.environ[LAUNCHED] = "1"
    parser = _torchrun.get_args_parser()
    options = parser.parse_args(arguments)
    # What torch tells of a failure is said at the end in one line; a restart is told as it is.
    logging.disable(logging.WARNING if options.max_restarts else logging.ERROR)
    if hasattr(options, "signals_to_handle"):
        # Without it torch would kill the ranks 30 s after a signal.
        options.signals_to_handle = "SIGQUIT"
    with tempfile.TemporaryDirectory(prefix="pipeline-") as folder:
        os.environ[STOP_FILE] = str(Path(folder) / "stop")
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _ask_to_stop)
        try:
            _torchrun.run(options)
        except ChildFailedError as error:
            trace, message = _describe(error)
            print(f"{trace}error: {message}", file=sys.stderr)
            return 1
        except SignalException as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except (RuntimeError, RendezvousError) as error:
            reason = " ".join(str(error).split())
            print(f"error: the processes cannot be started: {reason}", file=sys.stderr)
            if options.master_addr and not options.standalone:
                place = f"{options.master_addr}:{options.master_port}"
                print(f"  hint: is {place} the first node, with this port free?", file=sys.stderr)
            return 1
    return 0


def _ask_to_stop(number: int, frame: FrameType | None) -> None:
    """Ask once; the second signal ends everything."""
    path = Path(os.environ[STOP_FILE])
    if path.exists():
        raise SignalException(f"ended by signal {number}", signal.Signals(number))
    path.touch()


def _describe(error: ChildFailedError) -> tuple[str, str]:
    """Return traceback and message of one rank: of its fault, else of its end, else of an echo."""
    rank, failure = min(error.failures.items(), key=lambda item: _order(item[1]))
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        return "", f"rank {rank} was ended by {name}"
    if "kind" not in failure.error_file_data:
        return "", f"rank {rank} ended with exit status {failure.exitcode}"
    told = failure.error_file_data["message"]
    named = "" if failure.error_file_data["kind"] == "hang" else f"rank {rank}: "
    return told["extraInfo"]["py_callstack"], named + told["message"]


def _order(failure: ProcessFailure) -> tuple[int, int]:
    kind = failure.error_file_data.get("kind")
    # SIGTERM is what torch sends to the others.
    killed = failure.exitcode < 0 and failure.exitcode != -signal.SIGTERM
    order = {"fault": 0, "hang": 1, None: 3, "echo": 4}
    return 2 if killed else order[kind], int(failure.timestamp)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
