"""Time as an input: the wall clock of a worker, or one that a test moves by hand."""

from __future__ import annotations

import time
from typing import Protocol


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
