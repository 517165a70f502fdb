"""``autosplit profile``: measure a model layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.options import FILE, SECONDS, Command, CommaNumbers, as_json, force
from autosplit.errors import UsageError
from autosplit.profilers import ProfileOptions
from autosplit.report.data import profile_data, to_text
from autosplit.report.profiles import profile_tables
from autosplit.serialize import refuse_existing
from autosplit.types import ModelRef


def _sizes(
    batch_size: tuple[int, ...] | None, seq_len: tuple[int, ...] | None
) -> dict[str, tuple[int, ...]]:
    """Return the sizes to go through; one batch size alone is that of the example inputs."""
    if seq_len is None and len(batch_size or ()) < 2:
        return {}
    given = {"batch": batch_size, "seq": seq_len}
    return {name: values for name, values in given.items() if values}


@contextmanager
def _kept_when_interrupted(terminal: Terminal, partial: Path) -> Iterator[None]:
    """Tell where the results are when the user interrupts the measurement."""
    try:
        yield
    except KeyboardInterrupt:
        if partial.exists():
            terminal.say(f"What was measured is in {partial}; the same command goes on from there.")
        raise


@click.command(cls=Command, short_help="Measure a model layer by layer.")
@click.argument("model")
@click.option("-o", "--output", type=FILE, default="profile.json", help="File to write.")
@click.option(
    "--batch-size", type=CommaNumbers(), help="Rows of one micro-batch; several are all measured."
)
@click.option(
    "--seq-len", type=CommaNumbers(), help="Length of sequences; several are all measured."
)
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=SHAPE:DTYPE",
    help="Example input, such as ids=2x128:int64.",
)
@click.option("--task", help="Task of a Hugging Face model, such as masked-lm.")
@click.option("--dtype", help="Cast the model first, such as bfloat16.")
@click.option("--autocast", metavar="DTYPE", help="Run the forward under autocast to this dtype.")
@click.option("--device", default="auto", help="auto, cpu, cuda or one GPU: cuda:1.")
@click.option(
    "--analytic",
    metavar="DEVICE",
    help="Measure nothing: model times for a device of the table (autosplit device list).",
)
@click.option(
    "--factors", type=click.Path(), help="Shares of the peak it reaches, from autosplit device fit."
)
@click.option(
    "--threads", type=click.IntRange(1), default=1, help="CPU threads that one stage will have."
)
@click.option(
    "--repetitions", type=click.IntRange(1), help="Time every layer as often, whatever --precision."
)
@click.option(
    "--precision",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.02,
    help="Repeat until the sum of all layers is known to this share.",
)
@click.option("--max-seconds", type=SECONDS, default="120s", help="Stop repeating after this time.")
@click.option(
    "--granularity",
    type=click.Choice(["op", "layer", "block"]),
    default="layer",
    help="Smallest piece that the planner may move.",
)
@click.option(
    "--on-meta",
    is_flag=True,
    help="Build the model without memory for its weights, and measure one layer of each kind.",
)
@click.option(
    "--compile", is_flag=True, help="Compile each layer (torch.compile) before it is timed."
)
@click.option(
    "--calibrate",
    is_flag=True,
    help="Also time the code that export writes, and scale the layers to it in a stage.",
)
@click.option("--inference", is_flag=True, help="Forward only, in evaluation mode.")
@as_json
@force
@click.pass_obj
def command(
    terminal: Terminal,
    /,
    model: str,
    output: Path,
    batch_size: tuple[int, ...] | None,
    seq_len: tuple[int, ...] | None,
    inputs: tuple[str, ...],
    task: str | None,
    dtype: str | None,
    autocast: str | None,
    on_meta: bool,
    repetitions: int | None,
    as_json: bool,
    force: bool,
    **measuring: Any,
) -> None:
    """Trace MODEL and measure time and memory of each layer.

    MODEL is FILE.py:NAME, package.module:NAME or hf:DIR, where NAME builds the model.

    Results are kept beside the output (profile.json.partial) as they come: after an interrupt
    the same command goes on from there.
    """
    if measuring["factors"] and not measuring["analytic"]:
        raise UsageError("--factors goes with --analytic", hint="name the device they are for")
    if repetitions is not None:
        measuring |= {"min_repetitions": repetitions, "max_repetitions": repetitions}
    options = ProfileOptions(**measuring)
    ref = ModelRef(
        spec=model,
        batch_size=max(batch_size) if batch_size else None,
        inputs=inputs,
        task=task,
        dtype=dtype,
        autocast=autocast,
        on_meta=on_meta,
    )
    workflow.check(ref, options)
    refuse_existing(output, force, (model.rpartition(":")[0],))
    sizes = _sizes(batch_size, seq_len)
    partial = output.with_name(f"{output.name}.partial")
    if partial.exists():
        terminal.say(f"Going on from {partial}.")
    with terminal.step("profile") as progress, _kept_when_interrupted(terminal, partial):
        if sizes:
            result = workflow.sweep(
                ref, sizes, options, progress=progress, partial=partial, force=force
            )
        else:
            result = workflow.profile(ref, options, progress=progress, partial=partial, force=force)
    workflow.save(result, output, force=force)
    partial.unlink(missing_ok=True)
    if as_json:
        terminal.write(to_text(profile_data(result)))
    else:
        terminal.show(*profile_tables(result))
    terminal.say(f"Wrote {output}.")
    finer = ("--granularity", "op") if options.granularity == "op" else ()
    terminal.next_step("plan", str(output), "--stages", "2", *finer)
