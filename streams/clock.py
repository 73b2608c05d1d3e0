"""Time as an input: the wall clock of a worker, the broker's as it is seen from here, or one that a test moves by hand."""

from __future__ import annotations

import time
from typing import Protocol

MOVED_MS = 1_000
"""A step of the machine's clock that is no mere drift."""


class Clock(Protocol):
    """Where the runtime takes its time from."""

    def now_ms(self) -> int:
        """Epoch milliseconds; may jump."""

    def monotonic_s(self) -> float:
        """Seconds since some start; never goes back."""


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds since some start."""
        return time.monotonic()


class ManualClock:
    """A clock that stands still until it is moved; nothing that holds one ever waits."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._passed_ms = 0

    def now_ms(self) -> int:
        """Epoch milliseconds, as set."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """Seconds moved forward so far."""
        return self._passed_ms / 1000

    def advance(self, by_ms: int) -> None:
        """Let `by_ms` milliseconds pass; refuses to go back (see `jump`)."""
        if by_ms < 0:
            msg = f"time passes forward only, not by {by_ms} ms"
            raise ValueError(msg)
        self._now_ms += by_ms
        self._passed_ms += by_ms

    def jump(self, now_ms: int) -> None:
        """Set the wall clock alone, in either direction, as an operator or a time server does."""
        self._now_ms = now_ms


class SkewedClock:
    """The clock of a machine that nobody sets: wrong by some time, and going faster or slower than the one it follows."""

    def __init__(self, true: Clock, by_ms: int, drift_ppm: int = 0) -> None:
        self._true = true
        self._by_ms = by_ms
        self._rate = 1 + drift_ppm / 1_000_000

    def set(self, by_ms: int) -> None:
        """Let somebody set it: it shows so much more than the one it follows."""
        self._by_ms = by_ms

    def now_ms(self) -> int:
        """Epoch milliseconds, as this machine believes."""
        return self._true.now_ms() + self._by_ms

    def monotonic_s(self) -> float:
        """Seconds since some start."""
        return self._true.monotonic_s() * self._rate


class BrokerClock:
    """The broker's clock as far as it was measured; deadlines are set and judged by it, whatever this machine's clock says.

    It goes on with the time that passes here, so that setting the machine's clock moves no deadline.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._ahead_ms: float | None = None
        """The broker's epoch milliseconds less those that have passed here."""
        self._difference_ms = 0.0
        self.uncertainty_ms = 0
        """How far the broker's time may be from what `now_ms` says."""

    @property
    def is_known(self) -> bool:
        """Whether the broker's time was measured; before, `now_ms` is the machine's."""
        return self._ahead_ms is not None

    def set(self, at_ms: float, monotonic_s: float, uncertainty_ms: int) -> None:
        """The broker's clock said `at_ms` when `monotonic_s` seconds had passed here."""
        self._ahead_ms = at_ms - monotonic_s * 1000
        self.uncertainty_ms = uncertainty_ms
        self._difference_ms = self._now_difference_ms()

    def _now_difference_ms(self) -> float:
        return self.now_ms() - self._own.now_ms()

    @property
    def difference_s(self) -> float:
        """How far the broker's clock was ahead of the machine's when it was measured."""
        return self._difference_ms / 1000

    @property
    def has_moved(self) -> bool:
        """Whether the machine's clock was set, or the machine slept, since the broker's time was measured."""
        return self.is_known and abs(self._now_difference_ms() - self._difference_ms) > MOVED_MS

    def now_ms(self) -> int:
        """Epoch milliseconds by the broker's clock."""
        if self._ahead_ms is None:
            return self._own.now_ms()
        return int(self._own.monotonic_s() * 1000 + self._ahead_ms + 0.5)

    def monotonic_s(self) -> float:
        """Seconds since some start."""
        return self._own.monotonic_s()
