"""What is said when a run fails: one line that names the rank, and the fault before its echoes."""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from .errors import PipelineError
from .watch import blame

LAUNCHED = "PIPELINE_LAUNCHED"
"""Set by ``launch.py``, which repeats the first fault after all others."""

_LOST = re.compile(r"gloo|nccl|connection (closed|reset)|timed out|broken pipe|TCPStore", re.I)


def run_main(main: Callable[[], None]) -> None:
    """Call ``main``; end the process with one line where it fails.

    A traceback is shown for an error in data.py or the model alone. A rank that another one left
    waiting says which.
    """
    try:
        main()
    except PipelineError as error:
        _end(str(error), "fault")
    except KeyboardInterrupt:
        _end("interrupted", "echo")
    except Exception as error:
        if _lost(error):
            kind = "hang" if "timed out" in str(error).lower() else "echo"
            _end(blame() or f"lost the other ranks: {_line(error)}", kind)
        traceback.print_exc()
        _end(f"{type(error).__name__}: {_line(error)}", "fault")


def _end(message: str, kind: str) -> None:
    rank = os.environ.get("RANK", "0")
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        info = {"timestamp": str(int(time.time()))}
        data = {"message": {"message": message, "extraInfo": info}, "kind": kind, "rank": rank}
        Path(path).write_text(json.dumps(data), encoding="utf-8")
    if LAUNCHED not in os.environ:
        print(f"error: {message}", file=sys.stderr)
    elif _will_restart():
        print(f"rank {rank}: {message}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's end: a half-done transfer would be waited for there.
    os._exit(1)


def _will_restart() -> bool:
    done = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    return done < int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0"))


def _lost(error: BaseException | None) -> bool:
    """Whether the error, or what caused it, is the loss of another process."""
    while error is not None:
        if isinstance(error, RuntimeError) and _LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
