"""``autosplit cluster``: measure the devices and links at hand, and check a file of them."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit.cli.console import Terminal
from autosplit.cli.options import (
    CLUSTER_FILE,
    FILE,
    SECONDS,
    ClusterFile,
    Command,
    as_json,
    common_options,
    force,
)
from autosplit.cluster import to_toml
from autosplit.report.cluster import cluster_data, cluster_tables
from autosplit.report.data import to_text
from autosplit.serialize import dump_text, refuse_existing
from autosplit.types import Cluster

_USE = """\b
Start it with torchrun, one process for each device:

\b
  torchrun --nproc-per-node 4 --no-python \\
      autosplit cluster probe -o cluster.toml

\b
On several machines, on each of them:

\b
  torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d \\
      --rdzv-endpoint HOST:29500 --no-python \\
      autosplit cluster probe -o cluster.toml
"""


@click.group(short_help="Devices and links at hand: measure them, or check a file.")
def command() -> None:
    """Measure the devices and links of a cluster, or show a file that describes one."""


command.params.extend(common_options())


@command.command(
    "probe", cls=Command, short_help="Measure all devices and links (with torchrun).", epilog=_USE
)
@click.option("-o", "--output", type=FILE, default="cluster.toml", help="File to write.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    help="What to measure: NCCL between GPUs, gloo between processors.",
)
@click.option("--speed/--no-speed", default=True, help="Compare the devices at a matrix product.")
@click.option(
    "--timeout", "timeout_s", type=SECONDS, default="60s", help="Longest wait for a silent rank."
)
@as_json
@force
@click.pass_obj
def probe_cluster(
    terminal: Terminal,
    output: Path,
    device: str,
    speed: bool,
    timeout_s: float,
    as_json: bool,
    force: bool,
) -> None:
    """Measure memory and speed of all devices, bandwidth and latency between all pairs of them.

    A node takes part in one measurement at a time, so that what its devices share is measured
    alone. The file says once what most links have in common; a pair stands in it where it differs
    by more than 15 %, and by more than the two ways of a link do. The slowest kind of device has
    speed 1: change that where the profile was measured on another.
    """
    from autosplit.profilers.probe import own_rank, probe

    if own_rank() == 0:
        refuse_existing(output, force)
    with terminal.step("Measuring links") as report:
        found = probe(device, timeout_s, speed, report)
    if found is None:
        return
    dump_text(to_toml(found.cluster), output, force=force)
    _show(terminal, found.cluster, as_json)
    for note in found.remarks():
        terminal.warn(note)
    terminal.say(f"Wrote {output}.")
    terminal.next_step("plan", "profile.json", "--cluster", str(output))


@command.command(
    "show", cls=Command, short_help="Devices and links of a file.", epilog=CLUSTER_FILE
)
@click.argument("cluster", metavar="FILE", type=ClusterFile())
@as_json
@click.pass_obj
def show_cluster(terminal: Terminal, cluster: Cluster, as_json: bool) -> None:
    """Show which devices FILE names and which link joins each two of them."""
    _show(terminal, cluster, as_json)


def _show(terminal: Terminal, cluster: Cluster, as_json: bool) -> None:
    if as_json:
        terminal.write(to_text(cluster_data(cluster)))
    else:
        terminal.show(*cluster_tables(cluster))
