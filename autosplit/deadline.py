"""One end of time for all that a request does: what one part leaves, the next may use."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment at which to stop.

    Parameters
    ----------
    at
        Value of ``time.monotonic``.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """Return the moment some seconds from now."""
        return cls(time.monotonic() + seconds)

    @property
    def left_s(self) -> float:
        """Seconds until then, and none when it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether it is over."""
        return time.monotonic() >= self.at

    def within(self, seconds: float) -> Deadline:
        """Return an end after some seconds, or this one where it comes first."""
        return min(self, Deadline.after(seconds), key=lambda each: each.at)

    def share(self, part: float) -> Deadline:
        """Return the end of a part of the time that is left."""
        return Deadline.after(part * self.left_s)

    def keeping(self, seconds: float) -> Deadline:
        """Return an end that leaves some seconds, or a quarter of the time where that is less."""
        return Deadline(self.at - min(seconds, self.left_s / 4))
