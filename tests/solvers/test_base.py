"""A chain problem that exists is a valid one."""

from __future__ import annotations

import math
from typing import Any

import pytest

from autosplit.errors import DataError
from autosplit.solvers.base import ChainProblem, DeviceKind, Link, Net, Shared, Solution

TWO: dict[str, Any] = {"num_stages": 2, "work_s": (1.0, 1.0, 1.0), "edges": ((0, 1), (1, 2))}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"work_s": (), "edges": ()}, "at least one node"),
        ({"work_s": (1.0, math.nan, 1.0)}, r"work_s\[1\] is nan"),
        ({"work_s": (1.0, -1.0, 1.0)}, r"work_s\[1\] is -1"),
        ({"num_stages": 0}, "num_stages is 0"),
        ({"edges": ((1, 0),)}, "does not follow the order"),
        ({"edges": ((0, 3),)}, "does not follow the order"),
        ({"nets": (Net((0, 5), 1.0),)}, "unknown pin"),
        ({"static_bytes": (1.0,)}, "static_bytes has 1 entries, not 3"),
        ({"speeds": (1.0,)}, "speeds has 1 entries, not 2"),
        ({"speeds": (1.0, 0.0)}, "speeds must be positive"),
        ({"links": (Link(), Link())}, "links has 2 entries, not 1"),
        ({"budget_bytes": (1.0, -1.0)}, "must not be negative"),
        ({"shared": (Shared((7,), 1.0),)}, "unknown shared node"),
        ({"fixed": ((0, 2),)}, "cannot fix node 0 to stage 2"),
        ({"fixed": ((0, 0), (0, 1))}, "fixed twice"),
        ({"apart": (((0,), ()),)}, "apart from none"),
        ({"apart": (((0, 1), (1,)),)}, "apart from itself"),
        ({"apart": (((0,), (3,)),)}, "unknown node alone or apart"),
        ({"alone": (3,)}, "unknown node alone or apart"),
        ({"entry_s": math.inf}, "entry_s is inf"),
        ({"recompute_s": (1.0, 1.0, 1.0)}, "go together"),
        ({"kinds": (DeviceKind(1),)}, "one device per stage"),
        ({"kinds": (DeviceKind(2, pays=False),)}, "do not pay"),
        ({"kinds": (DeviceKind(2, excluded=(9,)),)}, "unknown excluded node"),
        ({"kinds": (DeviceKind(2),), "speeds": (1.0, 1.0)}, "kinds replace speeds"),
        ({"kinds": (DeviceKind(2),), "kind_links": ((Link(),) * 2,)}, "square"),
        ({"kind_links": ((Link(),),)}, "kind_links need kinds"),
        ({"communication": "per_device", "overlap": True}, "no overlap"),
        (
            {"communication": "per_device", "nets": (Net((0,), 1.0, to_end=True),)},
            "no to_end",
        ),
    ],
)
def test_faults_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ChainProblem(**{**TWO, **fields})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Net((0,), 1.0), "two pins"),
        (lambda: Net((0, 0), 1.0), "pin twice"),
        (lambda: Net((0, 1), -1.0), "volume is -1"),
        (lambda: Net((0, 1), 1.0, returned=2.0), "returns more"),
        (lambda: Link(math.nan), "s_per_byte is nan"),
        (lambda: DeviceKind(0), "count is 0"),
        (lambda: DeviceKind(1, speed=0.0), "speed must be positive"),
        (lambda: DeviceKind(1, work_s=(math.inf,)), r"work_s\[0\] is inf"),
    ],
)
def test_faulty_parts_are_refused(make: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        make()


def test_gap_of_a_solution() -> None:
    assert Solution((0,), 4.0, 3.0, "feasible", "x", 0.0).gap == 0.25
    assert Solution((0,), 0.0, 0.0, "optimal", "x", 0.0).gap == 0.0
    assert Solution(None, math.inf, 1.0, "unknown", "x", 0.0).gap == 1.0
