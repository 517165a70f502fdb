"""``launch.sh``: what it starts, and what it refuses before it starts anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from autosplit.errors import DataError
from autosplit.launchers import LAUNCHERS, Launch

NODE = {"NODE_RANK": "1", "MASTER_ADDR": "host0"}
FAKE_PYTHON = """#!/bin/sh
[ "$1" = -c ] && echo "$MISSING" && exit
echo "OMP=$OMP_NUM_THREADS MMAP=$MALLOC_MMAP_MAX_ TRIM=$MALLOC_TRIM_THRESHOLD_"
echo "$@"
"""


@pytest.fixture
def launch(tmp_path: Path):
    """Return a function that runs ``launch.sh`` with a python that only tells its arguments."""
    (artifact,) = LAUNCHERS["torchrun"].emit(Launch(ranks=4))
    assert artifact.executable
    script = tmp_path / artifact.path
    script.write_text(artifact.text)
    script.chmod(0o755)
    (tmp_path / "python").write_text(FAKE_PYTHON)
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "train.py").touch()
    (tmp_path / "infer.py").touch()

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        kept = {"PATH": os.environ["PATH"], "PYTHON": str(tmp_path / "python")}
        return subprocess.run(
            [str(script), *arguments],
            env={**kept, **environment},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    return run


def test_replicas_multiply_the_processes(launch):
    assert "--nproc-per-node 12 " in launch(REPLICAS="3").stdout
    assert "--nproc-per-node 6 " in launch(REPLICAS="3", NNODES="2", **NODE).stdout
    for text in ("0", "two", "-1"):
        done = launch(REPLICAS=text)
        assert done.returncode == 1
        assert f"REPLICAS={text} is no number of replicas" in done.stderr


def test_the_replicas_of_a_plan_are_the_default():
    (artifact,) = LAUNCHERS["torchrun"].emit(Launch(ranks=2, replicas=4))
    assert "export REPLICAS=${REPLICAS:-4}\n" in artifact.text
    assert "RANKS=$((2 * REPLICAS))\n" in artifact.text


def test_one_node_by_default(launch):
    done = launch()
    assert done.returncode == 0, done.stderr
    memory, command = done.stdout.splitlines()
    assert memory == "OMP=1 MMAP=0 TRIM=1099511627776"
    assert re.fullmatch(
        r"-m pipeline.launch --standalone --max-restarts 0 --nproc-per-node 4 /.*/train.py", command
    )


def test_script_and_options_are_passed_on(launch):
    done = launch("infer.py", "--output", "a b", OMP_NUM_THREADS="3", MALLOC_MMAP_MAX_="9")
    assert done.stdout.splitlines()[0].startswith("OMP=3 MMAP=9")
    assert done.stdout.endswith("infer.py --output a b\n")


def test_several_nodes(launch):
    done = launch("train.py", NNODES="2", NODE_RANK="1", MASTER_ADDR="first", MASTER_PORT="1234")
    assert done.stdout.splitlines()[1].startswith(
        "-m pipeline.launch --nnodes 2 --node-rank 1 --master-addr first "
        "--master-port 1234 --max-restarts 0 --nproc-per-node 2 /"
    )


def test_options_alone_are_those_of_training(launch):
    done = launch("--steps", "5", RESTARTS="2")
    assert "--max-restarts 2" in done.stdout
    assert done.stdout.endswith("/train.py --steps 5\n")


def test_help_starts_no_processes(launch):
    for arguments in (["--help"], ["infer.py", "-h"]):
        done = launch(*arguments)
        script = "infer.py" if "infer.py" in arguments else "train.py"
        assert re.search(rf"^/\S+/{script} --help$", done.stdout, re.MULTILINE)
        assert "pipeline.launch" not in done.stdout


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NNODES": "3"}, "error: 4 processes do not divide over 3 nodes"),
        ({"NNODES": "2"}, "set NODE_RANK"),
        ({"NNODES": "2", "NODE_RANK": "0"}, "set MASTER_ADDR"),
    ],
)
def test_what_cannot_work_is_refused(launch, environment, message):
    done = launch("train.py", **environment)
    assert done.returncode != 0
    assert message in done.stderr
    assert done.stdout == ""


def test_an_unknown_script_is_refused(launch):
    done = launch("nothing.py")
    assert done.returncode == 1
    assert done.stderr == "error: there is no script nothing.py here\n"


def test_a_python_without_torch_is_refused_with_a_way_out(launch):
    done = launch(MISSING="torch and no safetensors")
    assert done.returncode == 1
    error, hint = done.stderr.splitlines()
    assert re.fullmatch(r"error: /\S+/python has no torch and no safetensors", error)
    assert hint == "  hint:  activate the environment, or PYTHON=/path/to/python ./launch.sh ..."
    assert done.stdout == ""


def test_what_a_real_python_lacks_is_found(launch, tmp_path):
    (tmp_path / "bare").write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -E "$@"\n')
    (tmp_path / "bare").chmod(0o755)
    done = launch(PYTHON=str(tmp_path / "bare"))
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}/bare has no torch and no safetensors\n")
    assert launch(PYTHON="/no/python").stderr == "error: there is no /no/python\n"


def test_no_processes_are_refused():
    with pytest.raises(DataError):
        Launch(ranks=0)
