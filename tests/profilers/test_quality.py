"""Remarks on a measurement: each matter once, the worst of it."""

from __future__ import annotations

import dataclasses

import pytest

from autosplit.errors import DataError
from autosplit.profilers.quality import Quality, remarks

GOOD = Quality(repetitions=10, bound=0.01, wall_s=1.0, cpu_s=1.0, drift=0.01)


def test_good_measurements_need_no_remark() -> None:
    on_gpu = dataclasses.replace(GOOD, host_s=0.1, device_s=1.0, clocks_mhz=(1980, 1965))
    assert remarks([GOOD, on_gpu], precision=0.02) == ()
    assert remarks([], precision=0.02) == ()


def test_a_busy_machine_is_said_once_with_the_worst_of_it() -> None:
    busy = [dataclasses.replace(GOOD, wall_s=wall_s) for wall_s in (1.3, 3.47, 1.1, 2.0)]
    (text,) = remarks(busy, precision=0.02)
    assert text.startswith("the machine was busy: wall time was 3.47 times the CPU time")
    assert text.endswith("(the worst of 3 measurements)")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bound": 0.05}, "precision 5.0 % after 10 repetitions (asked for 2.0 %)"),
        ({"drift": 0.2}, "later repetitions were 20 % slower than the first"),
        ({"drift": -0.2}, "later repetitions were 20 % faster than the first"),
        ({"host_s": 0.012, "device_s": 0.008}, "it takes 12.0 ms to start what the GPU runs in"),
        ({"clocks_mhz": (1980, 1200)}, "the GPU ran at 1980 MHz when the measurement began"),
    ],
)
def test_what_makes_numbers_doubtful_is_said(change: dict[str, object], text: str) -> None:
    (found,) = remarks([dataclasses.replace(GOOD, **change)], precision=0.02)  # type: ignore[arg-type]
    assert text in found


def test_an_unknown_clock_of_a_gpu_is_no_throttling() -> None:
    unknown = dataclasses.replace(GOOD, clocks_mhz=(0, 1200))
    assert remarks([unknown], precision=0.02) == ()


def test_what_is_no_measurement_is_refused() -> None:
    with pytest.raises(DataError, match="wall_s"):
        dataclasses.replace(GOOD, wall_s=float("nan"))
