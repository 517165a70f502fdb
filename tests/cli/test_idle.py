"""No option of ``plan`` is taken and then ignored."""

import json

import click
import pytest

from autosplit.cli.main import cli
from autosplit.errors import ExitCode
from tests.cli.test_plan import WORKLOAD

SEARCH = ("--gpus", "2", "--global-batch", "32")
ONE = ("--stages", "2")
VALUES = {
    "--pin": "embed=0",
    "--profile-for": "cpu=profile.json",
    "--schedule": "gpipe",
    "--memory": "1GiB",
    "--bandwidth": "1GB/s",
    "--latency": "1us",
    "--cluster": "cluster.toml",
    "--sharding": "fsdp",
    "--optimizer": "sgd",
    "--recompute": "auto",
    "--objective": "step",
    "--granularity": "block",
}
MEANT = {
    *("--solver", "--time-limit", "--gap", "--cross-check", "--host-cpu", "--json", "--force"),
    *("--verbose", "--quiet", "--color", "--traceback", "--help"),
}
"""Options that act on a workload file."""


def options():
    """Yield each option of ``plan`` with a value it takes."""
    for parameter in cli.get_command(click.Context(cli), "plan").params:
        if isinstance(parameter, click.Option):
            name = max(parameter.opts, key=len)
            for spelled in (name, *parameter.secondary_opts):
                value = () if parameter.is_flag or parameter.count else (VALUES.get(name, "2"),)
                yield name, (spelled, *value)


@pytest.mark.parametrize(
    "option", [pair for name, pair in options() if name not in MEANT], ids=" ".join
)
def test_a_workload_file_takes_what_it_leaves_open_alone(run, folder, option):
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    (folder / "cluster.toml").write_text("[[device]]\n")
    result = run("plan", "workload.json", *option)
    assert result.exit_code == ExitCode.USAGE
    assert f"{option[0]} is for profiles" in result.stderr
    assert f"leave out {option[0]}" in result.stderr


def test_one_workload_file_is_planned_at_a_time(run, folder):
    (folder / "workload.json").write_text(json.dumps(WORKLOAD))
    assert run("plan", "workload.json", "workload.json").exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((*ONE, "--no-host-cpu"), "--no-host-cpu is for workload files"),
        ((*ONE, "--no-replicas"), "--no-replicas is for --global-batch"),
        ((*ONE, "--sharding", "fsdp"), "--sharding is for several copies"),
        ((*ONE, "--profile-for", "a=profile.json"), "--profile-for is for the devices of"),
        ((*ONE, "--on-boundaries", "--granularity", "op"), "is --granularity block, not op"),
        ((*SEARCH, "--host-cpu"), "--host-cpu is for workload files"),
        ((*SEARCH, "--cross-check"), "--cross-check is for one configuration"),
        ((*SEARCH, "--no-replicas", "--sharding", "fsdp"), "--sharding is for several copies"),
        ((*SEARCH, "--batch-size", "8"), "--batch-size is what --global-batch chooses itself"),
        ((*SEARCH, "--data-parallel", "2"), "leave out --data-parallel"),
    ],
)
def test_what_could_do_nothing_is_refused(run, profile_file, options, words):
    result = run("plan", profile_file, *options)
    assert result.exit_code == ExitCode.USAGE
    assert words in result.stderr
    assert "hint" in result.stderr


@pytest.mark.parametrize("option", ["--memory", "--bandwidth", "--latency"])
def test_a_cluster_file_that_says_all_is_not_overruled(run, profile_file, folder, option):
    text = '[[device]]\ncount = 2\nmemory = "1GiB"\n[links]\ndefault = { bandwidth = "1GB/s" }\n'
    (folder / "cluster.toml").write_text(text)
    command = ("plan", profile_file, "--cluster", "cluster.toml")
    result = run(*command, option, VALUES[option])
    assert result.exit_code == ExitCode.USAGE
    assert f"{option} is for clusters whose file leaves it open" in result.stderr
    assert run(*command).exit_code == ExitCode.OK
