"""Weights of the stages to one model and back, and from another pipeline of the same model.

``merge`` writes every name of the original model's ``state_dict``, so that
``model.load_state_dict`` takes it strictly; ``split`` takes such weights apart again; ``recut``
takes over what another pipeline has trained, optimizer state included. A ``.pt`` file holds tied
tensors once; ``.safetensors`` knows no ties and holds them under each name.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from pipeline import PipelineError, Routing, read_routing
from pipeline.options import run_main
from pipeline.transfer import merge, merge_state, recut, split

__all__ = ["merge_state"]

HERE = Path(__file__).parent


def parse() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").replace("``", ""),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    merging = commands.add_parser("merge", help="write one model from the weights of the stages")
    merging.add_argument("weights", type=Path, nargs="?", default=HERE / "weights")
    layout = merging.add_mutually_exclusive_group()
    layout.add_argument("--hf", action="store_true", help="write a folder of shards")
    merging.add_argument(
        "--max-shard-size", type=byte_size, default="5GB", metavar="SIZE", help="with --hf"
    )
    layout.add_argument(
        "--dcp",
        action="store_true",
        help="write a checkpoint of torch.distributed.checkpoint, optimizer state included",
    )
    splitting = commands.add_parser("split", help="write the weights of the stages from a model's")
    splitting.add_argument("file", type=Path, help=".safetensors, .pt, Hugging Face folder, or DCP")
    splitting.add_argument(
        "--weights-dtype",
        choices=("same", "model"),
        default="same",
        help="model: convert floating-point tensors of another dtype",
    )
    splitting.add_argument(
        "--ignore-extra", action="store_true", help="leave out tensors that the model has not"
    )
    recutting = commands.add_parser("recut", help="take over what another pipeline has trained")
    recutting.add_argument(
        "old", type=Path, help="its weights, DIR/step_N of its training, or a DCP folder"
    )
    for command in (merging, splitting, recutting):
        command.add_argument("-o", "--output", type=Path, required=True)
        command.add_argument("--force", action="store_true", help="replace the output")
    return parser.parse_args()


def byte_size(text: str) -> int:
    """Parse a number of bytes: 5GB, 512MiB, 4096."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kMGT]?)(i?)B?", text)
    if found is None or not float(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes")
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kMGT".index(found[2] or " "))


def main() -> None:
    """Merge, split or recut."""
    options = parse()
    routing = read_routing(HERE / "routing.json")
    if options.output.exists() and not options.force:
        raise PipelineError(f"{options.output} exists", "pass --force to replace it")
    run(routing, options)


def run(routing: Routing, options: argparse.Namespace) -> None:
    """Run one command."""
    if options.command == "merge":
        merge(
            routing,
            options.weights,
            options.output,
            max_shard_bytes=options.max_shard_size if options.hf else None,
            config=config(),
            distributed=options.dcp,
        )
    elif options.command == "split":
        split(
            routing,
            options.file,
            HERE / "weights",
            options.output,
            convert=options.weights_dtype == "model",
            ignore_extra=options.ignore_extra,
        )
    else:
        recut(routing, options.old, HERE / "weights", options.output)


def config() -> Path | None:
    """Return the ``config.json`` that the model was built from, if it is a Hugging Face one."""
    plan = json.loads((HERE / "plan.json").read_text(encoding="utf-8"))
    kind, _, folder = plan["model"]["spec"].partition(":")
    path = Path(folder) / "config.json"
    return path if kind == "hf" and path.is_file() else None


if __name__ == "__main__":
    run_main(main)
