"""How far measured numbers can be trusted, said in as few remarks as possible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autosplit.checks import require_finite
from autosplit.units import format_seconds, format_share

_CONTENDED = 1.2
"""Wall time over CPU time from which on the machine is called busy."""

_DRIFTING = 0.05
"""Change between the first and last third of the repetitions that is worth a remark."""

_HOST_BOUND = 0.9
"""Time to issue a pass over time to run it from which on the host holds a GPU up."""


@dataclass(frozen=True, slots=True)
class Quality:
    """What tells how good one measurement is.

    Parameters
    ----------
    repetitions
        How often its layers were timed.
    bound
        Bound on the relative error of the sum of its layers.
    wall_s, cpu_s
        Time it took by the wall, and of the processor.
    drift
        Share by which the last repetitions were slower than the first.
    host_s, device_s
        Seconds in which the host issued a pass, and a GPU ran it; 0 without one.
    clocks_mhz
        Clock of a GPU at the start and at the end; None where it is not known.
    """

    repetitions: int
    bound: float
    wall_s: float
    cpu_s: float
    drift: float
    host_s: float = 0.0
    device_s: float = 0.0
    clocks_mhz: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        require_finite(self, "bound", "wall_s", "cpu_s", "host_s", "device_s")
        require_finite(self, "repetitions", minimum=1)

    @property
    def contention(self) -> float:
        """Wall time over CPU time."""
        return self.wall_s / self.cpu_s if self.cpu_s > 0 else 0.0

    @property
    def host_share(self) -> float:
        """Time to issue a pass over the time to run it."""
        return self.host_s / self.device_s if self.device_s > 0 else 0.0


def remarks(found: Sequence[Quality], precision: float) -> tuple[str, ...]:
    """Return what a user should know of some measurements, one remark for each matter.

    Parameters
    ----------
    found
        All measurements of a profile.
    precision
        Share to which sums were asked for.
    """
    said = (
        _worst(found, lambda each: each.bound, precision, _imprecise(precision)),
        _worst(found, lambda each: each.contention, _CONTENDED, _busy),
        _worst(found, lambda each: abs(each.drift), _DRIFTING, _drifting),
        _worst(found, lambda each: each.host_share, _HOST_BOUND, _host_bound),
        _worst(found, _clock_change, _DRIFTING, _clocks),
    )
    return tuple(text for text in said if text)


def _worst(
    found: Sequence[Quality],
    amount: Callable[[Quality], float],
    limit: float,
    text: Callable[[Quality], str],
) -> str:
    """Return a remark on the worst of those above a limit, and how many there are."""
    above = [each for each in found if amount(each) > limit]
    if not above:
        return ""
    where = f" (the worst of {len(above)} measurements)" if len(above) > 1 else ""
    return text(max(above, key=amount)) + where


def _imprecise(precision: float) -> Callable[[Quality], str]:
    return lambda each: (
        f"precision {format_share(each.bound)} after {each.repetitions} repetitions "
        f"(asked for {format_share(precision)})"
    )


def _busy(each: Quality) -> str:
    return (
        f"the machine was busy: wall time was {each.contention:.2f} times the CPU time of the "
        "measurement"
    )


def _drifting(each: Quality) -> str:
    word = "slower" if each.drift > 0 else "faster"
    return f"later repetitions were {format_share(abs(each.drift))} {word} than the first"


def _host_bound(each: Quality) -> str:
    return (
        f"the host holds the GPU up: it takes {format_seconds(each.host_s)} to start what the "
        f"GPU runs in {format_seconds(each.device_s)}; larger micro-batches or --compile help"
    )


def _clock_change(each: Quality) -> float:
    if each.clocks_mhz is None or not each.clocks_mhz[0]:
        return 0.0
    return abs(each.clocks_mhz[1] / each.clocks_mhz[0] - 1)


def _clocks(each: Quality) -> str:
    start, end = each.clocks_mhz or (0, 0)
    return f"the GPU ran at {start} MHz when the measurement began, at {end} MHz when it ended"
