"""``autosplit plan``: find the best stage boundaries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import RenderableType

from autosplit import workflow
from autosplit.baselines import Comparison
from autosplit.cli.console import Terminal
from autosplit.cli.idle import refuse_for_profile, refuse_for_workload
from autosplit.cli.kinds import PLAN, PROFILE, WORKLOAD, expect
from autosplit.cli.options import (
    BYTES,
    CLUSTER_FILE,
    CLUSTER_PATH,
    FILE,
    LATENCY,
    RATE,
    SECONDS,
    Assignment,
    ClusterFile,
    CommaList,
    Command,
    LazyChoice,
    as_json,
    force,
)
from autosplit.errors import UsageError
from autosplit.report.data import plan_data, to_text, workload_data
from autosplit.report.planning import baseline_tables, search_tables, workload_tables
from autosplit.report.plans import plan_tables
from autosplit.schedules import SCHEDULES
from autosplit.search import Candidate
from autosplit.serialize import refuse_existing
from autosplit.types import ASSUMED_BYTES_PER_S, ASSUMED_LATENCY_S, PlanRequest, Profile
from autosplit.units import format_share

_MICROBATCHES = 4
"""Micro-batches for each stage, where none are asked for."""


@click.command(cls=Command, short_help="Find the best stage boundaries.", epilog=CLUSTER_FILE)
@click.argument("files", metavar="PROFILE...", type=FILE, nargs=-1, required=True)
@click.option(
    "-o", "--output", type=FILE, help="File to write.  [default: plan.json; none with --json]"
)
@click.option("--stages", type=click.IntRange(1), help="Stages to make.")
@click.option("--gpus", type=click.IntRange(1), help="Devices; a stage for each if nothing else.")
@click.option("--microbatches", type=click.IntRange(1), help="Per step.  [default: 4 per stage]")
@click.option(
    "--global-batch",
    type=click.IntRange(1),
    help="Rows of a step: search stages, replicas, micro-batches, schedule and, with --memory, "
    "recomputation for --gpus. What you say of them stays as you say.",
)
@click.option(
    "--replicas/--no-replicas",
    default=True,
    help="Whether --global-batch may choose several copies of a pipeline.",
)
@click.option(
    "--data-parallel",
    "copies",
    type=click.IntRange(1),
    help="Copies of the pipeline, each on devices and rows of its own.  [default: 1]",
)
@click.option(
    "--sharding",
    type=click.Choice(["replicate", "fsdp"]),
    default="replicate",
    help="Whether copies hold parameters and optimizer state whole, or divide them.",
)
@click.option(
    "--schedule",
    type=LazyChoice("schedule", "autosplit.schedules:SCHEDULES"),
    default="1f1b",
    help="Order of work.",
)
@click.option("--memory", "memory_bytes", type=BYTES, help="Of each device, such as 16GiB.")
@click.option(
    "--batch-size",
    type=click.IntRange(1),
    help="Rows of a micro-batch, where the profile holds several sizes.",
)
@click.option(
    "--bandwidth",
    "link_bytes_per_s",
    type=RATE,
    help="Of a link between stages, such as 25GB/s, or free.  [default: 10GB/s, an assumption]",
)
@click.option(
    "--latency",
    "latency_s",
    type=LATENCY,
    help="Of a link, such as 5us.  [default: 10us with the assumed bandwidth, else none]",
)
@click.option("--overlap", is_flag=True, help="Transfers run beside compute.")
@click.option("--cluster", type=ClusterFile(), help="TOML file of the devices, as below.")
@click.option(
    "--profile-for",
    "profiles",
    type=Assignment("kind=file"),
    multiple=True,
    help="Profile of the same model on another kind of device of the cluster.",
)
@click.option(
    "--optimizer",
    type=LazyChoice("optimizer", "autosplit.cost:OPTIMIZER_COPIES"),
    default="adam",
    help="Whose state takes memory.",
)
@click.option(
    "--recompute",
    type=click.Choice(["none", "auto", "all"]),
    default="none",
    help="Compute activations again in backward instead of keeping them.",
)
@click.option(
    "--objective",
    type=click.Choice(["step", "bottleneck"]),
    help="Make the whole step or the busiest stage shortest; by default the step, and the busiest "
    "stage for graphs of other tools.",
)
@click.option(
    "--granularity",
    type=click.Choice(["op", "layer", "block"]),
    default="layer",
    help="Never cut inside a layer, or inside a block; or, with a profile of operations, anywhere.",
)
@click.option(
    "--on-boundaries",
    is_flag=True,
    help="Cut between blocks only, and say what that costs; as --granularity block. A block is an "
    "element of a module list, such as h.3; --together keeps other modules whole.",
)
@click.option(
    "--improve",
    type=FILE,
    help="Plan to do better than: the search starts there, and never ends with a worse one.",
)
@click.option(
    "--pin",
    "pins",
    type=Assignment("layer=stage", number=True),
    multiple=True,
    help="Put a layer, or all of a module, on a stage, counted from 0.",
)
@click.option(
    "--together",
    type=CommaList(),
    multiple=True,
    help="Never cut inside a module (h.3, or each of h.*.attn), nor part several (embed,head).",
)
@click.option(
    "--apart",
    type=CommaList(),
    multiple=True,
    help="Layers or modules of which no two share a stage.",
)
@click.option(
    "--alone",
    type=CommaList(),
    multiple=True,
    help="Layers or modules with a stage that holds nothing else.",
)
@click.option(
    "--boundaries",
    type=CommaList(),
    default=(),
    show_default=False,
    help="First layer of each stage but the first: evaluate instead of searching.",
)
@click.option(
    "--solver",
    type=LazyChoice("solver", "autosplit.solvers:SOLVERS", extra=("auto",)),
    default="auto",
    help="Who searches; auto takes dp, and an ILP where dp cannot prove its plan.",
)
@click.option("--time-limit", "time_limit_s", type=SECONDS, default="60s", help="For the solver.")
@click.option(
    "--gap", type=click.FloatRange(0, 1), default=0.0, help="Share of the best that may be lost."
)
@click.option("--cross-check", is_flag=True, help="Solve with every solver; fail if they differ.")
@click.option("--compare", is_flag=True, help="Also show what plans made by hand would cost.")
@click.option(
    "--host-cpu/--no-host-cpu", default=True, help="Use the host CPU that a workload file offers."
)
@as_json
@force
@click.pass_context
def command(
    context: click.Context,
    /,
    files: tuple[Path, ...],
    output: Path | None,
    gpus: int | None,
    global_batch: int | None,
    replicas: bool,
    copies: int | None,
    batch_size: int | None,
    profiles: tuple[tuple[str, str], ...],
    improve: Path | None,
    on_boundaries: bool,
    cross_check: bool,
    compare: bool,
    host_cpu: bool,
    as_json: bool,
    force: bool,
    **wishes: Any,
) -> None:
    """Divide the layers of PROFILE into stages, proven best where time allows.

    Several profiles of one model at different batch sizes are for --global-batch to choose
    from. Workload files of dnn-partitioning and PipeDream are planned too.
    """
    terminal: Terminal = context.obj
    if on_boundaries:
        wishes["granularity"] = "block"
    source = context.get_parameter_source("link_bytes_per_s")
    wishes.update(_link(wishes, said=source is not ParameterSource.DEFAULT))
    for file in files:
        expect(file, PROFILE, WORKLOAD)
    for _, other in profiles:
        expect(Path(other), PROFILE)
    if improve is not None:
        expect(improve, PLAN)
    subject = workflow.read_profile(files[0])
    if not isinstance(subject, Profile):
        refuse_for_workload(context)
        _refuse_more_than_one(files)
        limits = {name: wishes[name] for name in ("solver", "time_limit_s", "gap")}
        with terminal.step("plan"):
            placed = workflow.place(subject, host_cpu=host_cpu, cross_check=cross_check, **limits)
        _show(terminal, as_json, workload_data(placed), workload_tables(placed))
        return
    refuse_for_profile(context)
    if wishes["objective"] is None:
        wishes["objective"] = "bottleneck" if subject.device.clock == "file" else "step"
    if output is None and not as_json:
        output = Path("plan.json")
    if output is not None:
        inputs = (*files, *(other for _, other in profiles), *context.meta.get(CLUSTER_PATH, ()))
        refuse_existing(output, force, inputs)
    if global_batch is None:
        _refuse_more_than_one(files)
        wishes["replicas"] = copies or 1
        request = _request(_shared_out(gpus, wishes["replicas"]), wishes)
        with terminal.step("plan"):
            plan = workflow.plan(
                files[0],
                request,
                batch_size=batch_size,
                profiles=dict(profiles),
                cross_check=cross_check,
                improve=improve,
            )
        candidates: tuple[Candidate, ...] = ()
        left_out: tuple[str, ...] = ()
    else:
        choices = _choices(context, wishes)
        with terminal.step("search"):
            found = workflow.search(
                files,
                PlanRequest(stages=1, microbatches=1, **wishes),
                devices=_devices(gpus, wishes),
                global_batch=global_batch,
                replicas=replicas,
                **choices,
            )
        plan, candidates, left_out = found.best, found.candidates, found.notes
    baselines: tuple[Comparison, ...] = ()
    if compare:
        baselines = workflow.compare(files[0], plan.request, batch_size=plan.model.batch_size)
    _show(
        terminal,
        as_json,
        plan_data(plan, candidates, baselines, left_out),
        [
            *plan_tables(plan),
            *search_tables(candidates, left_out),
            *baseline_tables(plan, baselines),
        ],
    )
    if plan.status == "feasible":
        terminal.warn(f"not proven best: another plan may be up to {format_share(plan.gap)} better")
    if output is not None:
        workflow.save(plan, output, force=force)
        terminal.say(f"Wrote {output}.")
        terminal.next_step("export", str(output), "-o", "pipeline")


def _shared_out(gpus: int | None, copies: int) -> int | None:
    """Return the devices of each copy of the pipeline."""
    if gpus is not None and gpus % copies:
        raise UsageError(f"--gpus {gpus} cannot be shared by --data-parallel {copies}")
    return None if gpus is None else gpus // copies


def _request(gpus: int | None, wishes: dict[str, Any]) -> PlanRequest:
    """Return the request; what was not asked for follows from what was."""
    stages = wishes.pop("stages")
    if stages is None and gpus is not None:
        stages = SCHEDULES[wishes["schedule"]].default_stages(gpus)
    if wishes["boundaries"]:
        stages = stages or len(wishes["boundaries"]) + 1
    if wishes["cluster"] is not None:
        stages = stages or max(1, len(wishes["cluster"].devices) // wishes["replicas"])
    if stages is None:
        raise UsageError(
            "how many stages?", hint="give --stages or --gpus, or --gpus with --global-batch"
        )
    microbatches = wishes.pop("microbatches") or _MICROBATCHES * stages
    return PlanRequest(stages=stages, microbatches=microbatches, ranks=gpus, **wishes)


def _choices(context: click.Context, wishes: dict[str, Any]) -> dict[str, Any]:
    """Return what the search need not choose, because it was said; take numbers from the wishes."""
    choices = {name: wishes.pop(name) for name in ("stages", "microbatches")}
    for name, choice in (("schedule", "schedules"), ("recompute", "recompute")):
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT:
            choices[choice] = (wishes[name],)
    return choices


def _devices(gpus: int | None, wishes: dict[str, Any]) -> int:
    """Return how many devices the search has."""
    if gpus is None and wishes["cluster"] is not None:
        return len(wishes["cluster"].devices)
    if gpus is None:
        raise UsageError("how many devices?", hint="give --gpus with --global-batch")
    return gpus


def _link(wishes: dict[str, Any], said: bool) -> dict[str, Any]:
    """Return the speed of the links: what was said, else what is assumed."""
    cluster, latency_s = wishes["cluster"], wishes["latency_s"]
    if said or (cluster and cluster.has_links):
        return {"latency_s": latency_s or 0.0}
    return {
        "link_bytes_per_s": ASSUMED_BYTES_PER_S,
        "latency_s": ASSUMED_LATENCY_S if latency_s is None else latency_s,
        "link_assumed": True,
    }


def _refuse_more_than_one(files: tuple[Path, ...]) -> None:
    if len(files) > 1:
        raise UsageError(
            f"one profile makes a plan, not {len(files)}",
            hint="give --gpus and --global-batch to choose the best of several batch sizes",
        )


def _show(
    terminal: Terminal, as_json: bool, data: dict[str, Any], tables: list[RenderableType]
) -> None:
    if as_json:
        terminal.write(to_text(data))
    else:
        terminal.show(*tables)
