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
from typing import NoReturn

from .errors import PipelineError
from .watch import blame

LAUNCHED = "PIPELINE_LAUNCHED"
"""Set by ``launch.py``, which repeats the first fault after all others."""

_LOST = re.compile(r"gloo|nccl|connection (closed|reset)|timed out|broken pipe|TCPStore", re.I)

_CONNECTED = (os.path.join("torch", "distributed"), str(Path(__file__).parent))
"""Where an error of a connection is raised, and not one that data.py had with its own."""

_FOREIGN = ("site-packages", "<frozen", str(Path(__file__).parent), str(Path(os.__file__).parent))
"""Files that nobody edits."""


def run_main(main: Callable[[], None]) -> None:
    """Call ``main``; end the process with one line where it fails.

    An error in data.py or the model is told with its line and its traceback. A rank that another
    one left waiting says which.
    """
    try:
        main()
    except KeyboardInterrupt:
        end("interrupted", "echo")
    except Exception as error:
        if _lost(error):
            kind = "hang" if "timed out" in str(error).lower() else "echo"
            end(blame() or f"lost the other ranks: {_line(error)}", kind)
        # torch wraps what goes wrong inside a stage.
        while error.__cause__ is not None and isinstance(error.__cause__, Exception):
            error = error.__cause__
        if isinstance(error, PipelineError):
            end(str(error), "fault")
        message = f"{_place(error)}{type(error).__name__}: {_line(error)}"
        end(message, "fault", "".join(traceback.format_exception(error)))


def end(message: str, kind: str, trace: str = "") -> NoReturn:
    """End this process at once, with a message.

    Parameters
    ----------
    kind
        Whether this is a "fault", the report of a "hang" elsewhere, or an "echo" of a fault.
    trace
        Traceback, shown once for all ranks.
    """
    rank = os.environ.get("RANK", "0")
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if path:
        info = {"timestamp": str(int(time.time())), "py_callstack": trace}
        data = {"message": {"message": message, "extraInfo": info}, "kind": kind, "rank": rank}
        Path(path).write_text(json.dumps(data), encoding="utf-8")
    if LAUNCHED not in os.environ:
        print(f"{trace}error: {message}", file=sys.stderr)
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
        frames = traceback.extract_tb(error.__traceback__)
        here = bool(frames) and any(part in frames[-1].filename for part in _CONNECTED)
        if here and isinstance(error, RuntimeError) and _LOST.search(str(error)):
            return True
        error = error.__cause__ or error.__context__
    return False


def _place(error: BaseException) -> str:
    """Return the last line of the user's own code, or of the stages, that an error went through."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"line {error.lineno} of {error.filename}: "
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if not any(part in each.filename for part in _FOREIGN)]
    if not own or own[-1].filename.startswith("<"):
        return ""
    return f"line {own[-1].lineno} of {own[-1].filename}, in {own[-1].name}: "


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:297] + "..."
