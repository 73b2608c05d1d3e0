"""The clock of one simulated machine."""

from __future__ import annotations

from streams.clock import Clock


class OwnClock:
    """The clock of a machine: wrong by some time, and going faster or slower than the broker's."""

    def __init__(self, true: Clock, by_ms: int, drift_ppm: int) -> None:
        self._true = true
        self._by_ms = by_ms
        self._rate = 1 + drift_ppm / 1_000_000

    def now_ms(self) -> int:
        """Epoch milliseconds, as this machine believes."""
        return self._true.now_ms() + self._by_ms

    def monotonic_s(self) -> float:
        """Seconds since some start."""
        return self._true.monotonic_s() * self._rate

    def set(self, by_ms: int) -> None:
        """Make it wrong by another time."""
        self._by_ms = by_ms
