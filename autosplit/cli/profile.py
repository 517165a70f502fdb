"""``autosplit profile``: measure a model layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.options import FILE, SECONDS, Command, as_json, force
from autosplit.errors import UsageError
from autosplit.profilers import ProfileOptions
from autosplit.report.data import profile_data, to_text
from autosplit.report.tables import profile_tables
from autosplit.serialize import refuse_existing
from autosplit.types import ModelRef


@click.command(cls=Command, short_help="Measure a model layer by layer.")
@click.argument("model")
@click.option("-o", "--output", type=FILE, default="profile.json", help="File to write.")
@click.option("--batch-size", type=click.IntRange(1), help="Rows of one micro-batch.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME=SHAPE:DTYPE",
    help="Example input, such as ids=2x128:int64.",
)
@click.option("--task", help="Task of a Hugging Face model, such as masked-lm.")
@click.option("--dtype", help="Cast the model first, such as bfloat16.")
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
@click.option("--inference", is_flag=True, help="Forward only, in evaluation mode.")
@as_json
@force
@click.pass_obj
def command(
    terminal: Terminal,
    /,
    model: str,
    output: Path,
    batch_size: int | None,
    inputs: tuple[str, ...],
    task: str | None,
    dtype: str | None,
    on_meta: bool,
    repetitions: int | None,
    as_json: bool,
    force: bool,
    **measuring: Any,
) -> None:
    """Trace MODEL and measure time and memory of each layer.

    MODEL is FILE.py:NAME, package.module:NAME or hf:DIR, where NAME builds the model.
    """
    refuse_existing(output, force)
    if measuring["factors"] and not measuring["analytic"]:
        raise UsageError("--factors goes with --analytic", hint="name the device they are for")
    if repetitions is not None:
        measuring |= {"min_repetitions": repetitions, "max_repetitions": repetitions}
    options = ProfileOptions(**measuring)
    ref = ModelRef(
        spec=model, batch_size=batch_size, inputs=inputs, task=task, dtype=dtype, on_meta=on_meta
    )
    with terminal.step("profile") as progress:
        result = workflow.profile(ref, options, progress=progress)
    workflow.save(result, output, force=force)
    if as_json:
        terminal.write(to_text(profile_data(result)))
    else:
        terminal.show(*profile_tables(result))
    terminal.say(f"Wrote {output}.")
    terminal.next_step("plan", str(output), "--stages", "2")
