"""Start processes the way a user does, with a time limit, and leave none behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "autosplit" / "targets" / "templates" / "torch"


def torchrun(count: int, script: Path, *arguments: str, limit_s: float = 240.0) -> str:
    """Run a script in ``count`` processes with torchrun; return what they print."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return run([*command, f"--nproc-per-node={count}", str(script), *arguments], limit_s=limit_s)


def run(
    command: list[str],
    *,
    limit_s: float = 240.0,
    folder: Path | None = None,
    fails: bool = False,
    **environment: str,
) -> str:
    """Run a command in a process group of its own; return its output.

    With ``fails`` it must end with an error, else without.
    """
    path = os.pathsep.join([str(ROOT), str(RUNTIME)])
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": path,
            "PYTHON": sys.executable,
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    assert bool(process.returncode) == fails, output
    return output
