"""``autosplit device``: the devices that times can be modelled for."""

from __future__ import annotations

from pathlib import Path

import click

from autosplit import workflow
from autosplit.cli.console import Terminal
from autosplit.cli.kinds import PROFILE, expect
from autosplit.cli.options import FILE, Command, as_json, common_options, force
from autosplit.hardware import devices, find
from autosplit.report.data import to_text
from autosplit.report.hardware import (
    device_facts,
    device_table,
    devices_data,
    fit_data,
    fit_table,
    fit_warning,
)
from autosplit.serialize import dump_text, refuse_existing


@click.group(short_help="Devices that need not be here: their figures and factors.")
def command() -> None:
    """Show the table of devices, and fit how much of their peak is reached."""


command.params.extend(common_options())


@command.command("list", cls=Command, short_help="All devices of the table.")
@as_json
@click.pass_obj
def list_devices(terminal: Terminal, as_json: bool) -> None:
    """List the devices that ``profile --analytic`` knows."""
    table = devices().values()
    if as_json:
        terminal.write(to_text(devices_data(table)))
    else:
        terminal.show(device_table(table))
    terminal.next_step("device", "show", "a100-80gb")


@command.command("show", cls=Command, short_help="One device, with the source of its figures.")
@click.argument("name")
@as_json
@click.pass_obj
def show_device(terminal: Terminal, name: str, as_json: bool) -> None:
    """Show all figures of NAME."""
    device = find(name)
    if as_json:
        terminal.write(to_text(devices_data([device])))
    else:
        terminal.show(device_facts(device))
    terminal.next_step("profile", "model.py:build", "--analytic", device.key)


@command.command("fit", cls=Command, short_help="Fit factors to a measured profile.")
@click.argument("profile", type=FILE)
@click.option("-o", "--output", type=FILE, default="factors.toml", help="File to write.")
@click.option("--device", "name", help="Device of the table; by default the one the profile names.")
@as_json
@force
@click.pass_obj
def fit_factors(
    terminal: Terminal, profile: Path, output: Path, name: str | None, as_json: bool, force: bool
) -> None:
    """Fit to PROFILE which share of a device's peak each family of operators reaches."""
    expect(profile, PROFILE)
    refuse_existing(output, force, (profile,))
    device, found = workflow.fit_device(profile, name)
    dump_text(found.factors.to_toml(), output, force=force)
    if as_json:
        terminal.write(to_text(fit_data(found)))
    else:
        terminal.show(fit_table(found))
    if warning := fit_warning(found, device):
        terminal.warn(warning)
    terminal.say(f"Wrote {output}.")
    terminal.next_step(
        "profile", "model.py:build", "--analytic", device.key, "--factors", str(output)
    )
