"""Options that training and inference share."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import NoReturn

from .errors import PipelineError
from .failure import run_main
from .routing import Routing
from .schedules import schedule_names

__all__ = [
    "Parser",
    "add_run_options",
    "output_file",
    "output_folder",
    "positive",
    "rows_of",
    "run_main",
]


class Parser(argparse.ArgumentParser):
    """A parser whose errors are those of the pipeline: said once, not by every rank."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise PipelineError(f"{message}; see --help")


def positive(text: str) -> int:
    """Parse a whole number above zero."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not above zero")
    return value


def output_file(text: str) -> Path:
    """Parse the path of a file to write; refuse one that cannot be written before any work."""
    path = Path(text).absolute()
    output_folder(str(path.parent))
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder")
    return path


def output_folder(text: str) -> Path:
    """Parse the path of a folder to write into, and make it; refuse it where that fails."""
    path = Path(text).absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise argparse.ArgumentTypeError(f"cannot write to {path}: {error.strerror}") from None


def add_run_options(parser: argparse.ArgumentParser, routing: Routing) -> None:
    """Add the options that say how the pipeline runs; the plan gives their defaults."""
    run = routing.run
    parser.add_argument(
        "--batch-size",
        type=positive,
        metavar="ROWS",
        help="rows of one step, over all replicas (default: as many micro-batches as the plan "
        f"has, of {run.microbatch_size} rows, for each replica)",
    )
    parser.add_argument(
        "--microbatches",
        type=positive,
        default=run.microbatches,
        metavar="M",
        help="micro-batches of one step of each replica (default: %(default)s)",
    )
    parser.add_argument(
        "--schedule",
        choices=schedule_names(run.ranks),
        default=run.schedule,
        help="order of work (default: %(default)s)",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        default=Path(__file__).parents[1] / "weights",
        metavar="DIR",
        help="folder of the weights to start from (default: those of the export)",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto: a CUDA device for every process where there is one (default: %(default)s)",
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="CPU threads of each process (default: OMP_NUM_THREADS)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="how long a process waits for another (default: %(default)s)",
    )


def rows_of(options: argparse.Namespace, routing: Routing, replicas: int) -> int:
    """Return the rows of one step, over all replicas."""
    default = replicas * options.microbatches * routing.run.microbatch_size
    return int(options.batch_size or default)
