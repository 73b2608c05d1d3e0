"""Time in a simulated run: it passes, for seconds or for months, and clocks are set."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from streams.clock import ManualClock
from streams.simulation.coverage import Coverage
from streams.simulation.scenario import Say, Scenario

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Times:
    """The moves of time.

    Args:
        next_deadline_ms: The first deadline that is meant to pass without an answer.

    Attributes:
        latest_ms: The latest time that any clock has shown.
        clock_was_set: The wall clock jumped.
    """

    def __init__(
        self,
        scenario: Scenario,
        clock: ManualClock,
        rng: Random,
        coverage: Coverage,
        say: Say,
        *,
        next_deadline_ms: Callable[[], int | None],
    ) -> None:
        self._scenario = scenario
        self._clock = clock
        self._rng = rng
        self._coverage = coverage
        self._say = say
        self._next_deadline_ms = next_deadline_ms
        self.latest_ms = clock.now_ms()
        self.clock_was_set = False

    def pass_some(self) -> None:
        """Let some time pass: a little, or now and then as much as brings the clock to about the next deadline."""
        deadline_ms = self._next_deadline_ms()
        if deadline_ms is not None and self._rng.random() < 0.15:
            self.advance(max(deadline_ms + self._rng.choice((-200, -1, 0, 1, 200)) - self._clock.now_ms(), 1))
            return
        most = self._rng.choice((30, 300, 300, 1_500, 6_000, 70_000 if self._scenario.silence else 12_000))
        self.advance(self._rng.randint(1, most))

    def age(self) -> None:
        """Let hours, days or months pass, in which what ended is forgotten."""
        self._coverage.faults["months"] += 1
        self.advance(self._rng.choice((2 * HOUR_MS, DAY_MS, 8 * DAY_MS, 40 * DAY_MS)))

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self._say(f"clock: {by_ms} ms pass")
        self._clock.advance(by_ms)
        self._note()

    def until_next_deadline(self) -> int:
        """Milliseconds until shortly before the next deadline, where that is far."""
        deadline_ms = self._next_deadline_ms()
        return 0 if deadline_ms is None else deadline_ms - 1_000 - self._clock.now_ms()

    def jump(self) -> None:
        """Set the wall clock, forwards or back."""
        by_ms = self._rng.choice((-90_000, -5_000, -300, 300, 5_000, 90_000))
        self.clock_was_set = True
        self._coverage.faults["clock jump"] += 1
        self._say(f"clock: set by {by_ms} ms")
        self._clock.jump(self._clock.now_ms() + by_ms)
        self._note()

    def _note(self) -> None:
        self.latest_ms = max(self.latest_ms, self._clock.now_ms())
