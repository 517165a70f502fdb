"""What goes wrong around training is said once, in one line, and destroys nothing."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from tests.functional.exports import export
from tests.functional.processes import run
from tests.functional.test_training import MODEL

BROKEN = """

_whole = batches


def batches(batch_size):
    for number, batch in enumerate(_whole(batch_size)):
        if number == 1:
            raise KeyError("no such row")
        yield batch
"""
UNEVEN_END = """

import os


def eval_batches(batch_size):
    for number, batch in enumerate(batches(batch_size)):
        if number == 1 + int(os.environ["RANK"]):
            return
        yield batch
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bad") / "net.py"
    path.write_text(MODEL)
    export(f"{path}:build", 2, path.parent / "out", batch_size=4)
    return path.parent / "out"


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the export to spoil."""
    return Path(shutil.copytree(made, tmp_path / "out"))


def fail(folder: Path, *options: str, **environment: str) -> str:
    """Train in vain; return what is said."""
    command = ["./launch.sh", "train.py", "--timeout", "20", *options]
    said = run(command, folder=folder, fails=True, limit_s=100, **environment)
    assert said.count("\nerror: ") + said.startswith("error: ") == 1, said
    return said


def line_of(path: Path, text: str) -> int:
    return 1 + next(n for n, line in enumerate(path.read_text().splitlines()) if text in line)


@pytest.mark.timeout(120)
def test_an_error_in_data_on_all_ranks_is_one_traceback_and_one_line(folder: Path):
    data = folder / "data.py"
    data.write_text(data.read_text() + BROKEN)
    said = fail(folder)
    place = f"line {line_of(data, 'raise KeyError')} of {data}, in batches"
    assert said.splitlines()[-1].removeprefix("error: rank ")[1:] == (
        f": {place}: KeyError: 'no such row'"
    )
    assert said.count("Traceback") == 1


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("old", "new", "place", "error"),
    [
        ("    value: Tensor =", "    value: Tensor", "value: Tensor SOURCE", "SyntaxError"),
        ("import torch\n", "import torch, tortch\n", "tortch", "ModuleNotFoundError"),
        ("SOURCE.loss(output,", "SOURCE.loss(output[0, :, 0],", "output[0", "IndexError"),
        ("torch.optim.AdamW", "torch.optim.Adamw", "Adamw", "AttributeError"),
    ],
)
def test_a_mistake_in_data_is_named_with_its_line(
    folder: Path, old: str, new: str, place: str, error: str
):
    data = folder / "data.py"
    text = data.read_text()
    assert old in text
    data.write_text(text.replace(old, new, 1))
    said = fail(folder)
    assert f": line {line_of(data, place)} of {data}" in said.splitlines()[-1]
    assert f": {error}: " in said.splitlines()[-1]
    assert said.count("Traceback") <= 1


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_mistake_in_a_stage_is_named_with_its_line(folder: Path):
    stage = folder / "stages" / "stage_1.py"
    text = stage.read_text()
    assert "        return " in text
    stage.write_text(text.replace("        return ", "        x.missing\n        return "))
    last = fail(folder).splitlines()[-1]
    place = f"line {line_of(stage, 'missing')} of {stage}, in forward: "
    assert f"{place}NameError" in last or f"{place}AttributeError" in last


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_evaluation_that_ends_on_one_rank_alone(folder: Path):
    with (folder / "data.py").open("a") as file:
        file.write(UNEVEN_END)
    said = fail(folder, "--eval-every", "1")
    assert said.endswith("data.py ends on some ranks earlier than on others\n")
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_source_that_yields_nothing(folder: Path):
    with (folder / "data.py").open("a") as file:
        file.write("\n\ndef batches(batch_size):\n    return []\n")
    assert fail(folder).endswith("data.py yields no batch\n")


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("content", [None, b"", b"\xff" * 100], ids=["none", "empty", "broken"])
def test_weights_that_are_missing_or_broken(folder: Path, content: bytes | None):
    path = folder / "weights" / "stage_1.safetensors"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    said = fail(folder)
    (line,) = (line for line in said.splitlines() if line.startswith("error: "))
    assert line.startswith("error: rank 1: ")
    assert "weights/stage_1.safetensors" in line
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_port_in_use(folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        node = {"NNODES": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        said = fail(folder, **node)
    assert port in said
    assert "Traceback" not in said
    assert "hint: " in said


@pytest.mark.slow
@pytest.mark.timeout(250)
def test_a_disk_that_fills_leaves_the_last_checkpoint(folder: Path):
    """Files may grow to so many blocks that weights fit and the optimizer's state does not."""
    options = ("--checkpoint-dir", "run", "--save-every", "1")
    run(["./launch.sh", "train.py", "--steps", "1", *options], folder=folder, limit_s=100)
    step = folder / "run" / "step_1"
    before = {path.name: path.read_bytes() for path in step.iterdir()}
    largest = max(len(content) for content in before.values())
    smaller = max(len(content) for name, content in before.items() if "stage" in name)
    assert largest - smaller > 1024
    launcher = (folder / "launch.sh").read_text()
    limited = launcher.replace("exec ", f"ulimit -f {largest // 1024}\nexec ", 2)
    (folder / "launch.sh").write_text(limited)
    said = fail(folder, "--steps", "3", *options, "--resume", "auto")
    assert "error: rank" in said
    assert "cannot write" in said.splitlines()[-1]
    assert {path.name: path.read_bytes() for path in step.iterdir()} == before
    assert [path for path in os.listdir(folder / "run") if path.startswith("step_")] == ["step_1"]
    (folder / "launch.sh").write_text(launcher)
    run(["./launch.sh", "train.py", "--steps", "2", *options, "--resume", "auto"], folder=folder)
    assert (folder / "run" / "step_2" / "training.json").is_file()
