"""Options of ``plan`` that could do nothing beside the others are refused, not ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from autosplit.errors import UsageError

_OF_WORKLOADS = {
    *("files", "solver", "time_limit_s", "gap", "cross_check"),
    *("host_cpu", "as_json", "force"),
}
"""What a workload file leaves open; it says itself what runs where, and no plan is written."""


class _Idle(NamedTuple):
    """An option, whether there is nothing for it to do, and what would give it something."""

    option: str
    idle: object
    why: str
    hint: str = ""


def refuse_for_workload(context: click.Context) -> None:
    """Refuse what was said of anything that a workload file decides.

    Raises
    ------
    UsageError
        Naming the first such option.
    """
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in context.params and name not in _OF_WORKLOADS and _said(context, name):
            option = _spelled(context, parameter)
            raise UsageError(
                f"{option} is for profiles",
                cause="a workload file says itself what runs where",
                hint=f"leave out {option}",
            )


def refuse_for_profile(context: click.Context) -> None:
    """Refuse what was said where it changes nothing about a plan of a profile.

    Raises
    ------
    UsageError
        Naming the first such option, and what it needs.
    """
    options = {str(parameter.name): parameter for parameter in context.command.params}
    given = context.params
    for name, idle, why, hint in (*_beside_cluster(given), *_beside_search(given)):
        if idle and _said(context, name):
            option = _spelled(context, options[name])
            raise UsageError(f"{option} {why}", hint=hint or f"leave out {option}")
    if given["on_boundaries"] and _said(context, "granularity") and given["granularity"] != "block":
        raise UsageError(
            f"--on-boundaries is --granularity block, not {given['granularity']}",
            hint="give one of them",
        )


def _beside_cluster(given: Mapping[str, Any]) -> Iterator[_Idle]:
    cluster = given["cluster"]
    measured = cluster is None or all(device.memory_bytes is not None for device in cluster.devices)
    says_links = cluster is not None and cluster.has_links
    said_by_file = "is for clusters whose file leaves it open"
    yield _Idle("memory_bytes", cluster and measured, said_by_file)
    yield _Idle("link_bytes_per_s", says_links, said_by_file)
    yield _Idle("latency_s", says_links, said_by_file)
    kinds = {device.kind for device in cluster.devices} if cluster else set()
    strange = sorted({kind for kind, _ in given["profiles"]} - kinds)
    why = f"names {', '.join(strange)}, which the cluster does not have"
    yield _Idle("profiles", not cluster, "is for the devices of a --cluster", "give --cluster too")
    yield _Idle("profiles", strange, why, f"kinds of the cluster: {', '.join(sorted(kinds))}")


def _beside_search(given: Mapping[str, Any]) -> Iterator[_Idle]:
    searched = given["global_batch"] is not None
    one = "is for one configuration"
    without = "leave out --global-batch"
    yield _Idle("improve", searched, one, without)
    yield _Idle("cross_check", searched, one, without)
    yield _Idle("profiles", searched, one, without)
    yield _Idle("batch_size", searched, "is what --global-batch chooses itself")
    yield _Idle(
        "copies",
        searched,
        "is what --global-batch chooses itself",
        "leave out --data-parallel; --no-replicas keeps to one",
    )
    yield _Idle("replicas", not searched, "is for --global-batch", "give --data-parallel instead")
    several = (given["copies"] or 1) > 1 or (searched and given["replicas"])
    yield _Idle("sharding", not several, "is for several copies", "give --data-parallel 2 or more")
    yield _Idle("host_cpu", True, "is for workload files")


def _said(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is not ParameterSource.DEFAULT


def _spelled(context: click.Context, parameter: click.Parameter) -> str:
    """Return an option as it was typed, by its longest name."""
    off = parameter.secondary_opts and context.params[parameter.name] is False
    return max(parameter.secondary_opts if off else parameter.opts, key=len)
