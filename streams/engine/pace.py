"""Pace: how long a batch gathers before it is transacted (DESIGN 6 'Batch')."""

from __future__ import annotations

from schemas import limits
from streams.clock import Clock

GATHER_S_MIN = 0.0005
"""A shorter wait is not worth the turn."""


class Pace:
    """How fast the role writes, and how long its next batch may gather for it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 0.0  # records a second
        self._last_s = clock.monotonic_s()

    def wrote(self, records: int) -> None:
        """A transaction with so many records was committed."""
        now_s = self._clock.monotonic_s()
        elapsed_s, self._last_s = now_s - self._last_s, now_s
        if elapsed_s > 0:
            self._rate += (min(records / elapsed_s, limits.GATHER_RATE_MAX) - self._rate) / 4

    def gather_s(self) -> float:
        """How long to gather: proportional to the rate, nothing at all while it is low."""
        wait_s = self._rate * limits.GATHER_S_MAX / limits.GATHER_RATE_MAX
        return wait_s if wait_s >= GATHER_S_MIN else 0.0
