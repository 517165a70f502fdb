"""``autosplit checkpoint``: weights of an export to one model and back, and to another export."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.kinds import EXPORT, expect
from autosplit.cli.options import (
    BYTES,
    FILE,
    Command,
    common_options,
    force,
    ignore_extra,
    weights_dtype,
)


@click.group(short_help="Weights of an export: merged, split, moved to another.")
def command() -> None:
    """Turn weights of stages into those of the model and back, or of other stages."""


command.params.extend(common_options())


@command.command("merge", cls=Command, short_help="One model from the weights of the stages.")
@click.argument("folder", type=FILE)
@click.option("-o", "--output", type=FILE, required=True, help="File to write, or folder.")
@click.option("--weights", type=FILE, help="A checkpoint of its training (DIR/step_N).")
@click.option("--hf", is_flag=True, help="Write a Hugging Face folder.")
@click.option("--max-shard-size", type=BYTES, default="5GB", help="Largest file of that folder.")
@click.option("--dcp", is_flag=True, help="Write a folder of torch.distributed.checkpoint.")
@force
@click.pass_obj
def merge(
    terminal: Terminal,
    folder: Path,
    output: Path,
    weights: Path | None,
    hf: bool,
    max_shard_size: int,
    dcp: bool,
    force: bool,
) -> None:
    """Write one model from the stages of FOLDER, an export; the original loads it strictly.

    --dcp writes {"model": ..., "optim": ...} under the names of the whole model, optimizer state
    included, which any number of processes can load.
    """
    expect(folder, EXPORT)
    if hf and dcp:
        raise click.UsageError("--hf and --dcp are two layouts: give one")
    with terminal.step("merge"):
        workflow.merge_checkpoint(
            folder,
            output,
            weights=weights,
            max_shard_bytes=max_shard_size if hf else None,
            distributed=dcp,
            force=force,
        )
    terminal.say(f"Wrote {output}.")


@command.command("split", cls=Command, short_help="Weights of the stages from those of a model.")
@click.argument("file", type=FILE)
@click.option("--export", "folder", type=FILE, default="pipeline", help="The export.")
@click.option("-o", "--output", type=FILE, required=True, help="Folder to write.")
@weights_dtype
@ignore_extra
@force
@click.pass_obj
def split(
    terminal: Terminal,
    file: Path,
    folder: Path,
    output: Path,
    weights_dtype: str,
    ignore_extra: bool,
    force: bool,
) -> None:
    """Write weights for the stages of an export from FILE.

    FILE is a .safetensors file, a state_dict of torch.save, a Hugging Face folder, or one of
    torch.distributed.checkpoint.
    """
    expect(folder, EXPORT)
    with terminal.step("split"):
        workflow.split_checkpoint(
            folder,
            file,
            output,
            convert=weights_dtype == "model",
            ignore_extra=ignore_extra,
            force=force,
        )
    terminal.say(f"Wrote {output}. train.py --weights takes it.")


@command.command("recut", cls=Command, short_help="What one export has trained, for another.")
@click.argument("old", type=FILE)
@click.argument("new", type=FILE)
@click.option("-o", "--output", type=FILE, help="Folder to write.  [default: NEW/weights]")
@force
@click.pass_obj
def recut(terminal: Terminal, old: Path, new: Path, output: Path | None, force: bool) -> None:
    """Move weights and optimizer state of OLD to NEW, an export with other stages.

    OLD is an export of the same model, a checkpoint of its training (DIR/step_N), or a folder of
    torch.distributed.checkpoint.
    """
    expect(new, EXPORT)
    place = new / "weights" if output is None else output
    with terminal.step("recut"):
        workflow.recut_checkpoint(old, new, place, force=force)
    terminal.say(f"Wrote {place}.")
