"""Gates: what keeps a timer that may fail something from overtaking an answer that was there (DESIGN 8 policy 2, DECISIONS 6).

Theory of operation. Timers that wait for the same topic to be taken over stand in one lane. A lane goes in rounds, and a round covers the
timers that are due when it begins:

    1 ends      the high watermarks of the lane's topic, read after the timers' time: no answer that comes later counts
    2 passed    the role that takes the topic over has committed positions at or behind those ends
    3 last      the end of our `completions`, read after that
    4 open      everything up to that end is decided: the timers that the round covers may ring

The high watermark, not the stable offset: an answer may lie in a provider's open transaction. Steps 1 to 3 are looks of the whole
worker (`streams.engine.looks`); a task wants one for all of its lanes, at most once in `limits.BESIDE_MS`. A look may begin another round while earlier ones are under way, so that a backlog holds a
timer back for as long as it lasts and no longer. A gate that stays shut is told, and opens by nothing else; only where its lane has a
patience does it go on without step 2 after so long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from schemas import limits
from state.tables.timers import TimerIndex
from streams.clock import BrokerClock
from streams.engine.looks import Before, Ends, Look, Looks, Wanted, are_taken_over
from streams.log.seam import TopicPartition

logger = structlog.get_logger("kawait.core")

GATED_POLL_MS = 20
"""Pause between two turns while an answer of the broker, or the reading of what it said, is on its way."""

ROUNDS_MAX = 60
"""Rounds of a lane that are under way; what comes due behind a gate that stays shut is covered by a later one."""


@dataclass(slots=True)
class Round:
    """A gate under way.

    Attributes:
        covers_ms: Timers due by then ring when it is open.
        ends: Of the topic before; None: not read yet.
        last: The end of `completions`; None: not read yet.
    """

    covers_ms: int
    since_s: float
    ends: Ends | None = None
    last: int | None = None


class Lane:
    """Timers that wait for the same topic to be taken over.

    Args:
        before: Which; None: they wait for `completions` alone.
        patience_s: They wait no longer for that, while we run; None: as long as it takes.
    """

    def __init__(self, before: Before | None, patience_s: float | None = None) -> None:
        self.before = before
        self.patience_s = patience_s
        self.timers = TimerIndex()
        self.rounds: deque[Round] = deque()
        self.passed_ms = 0
        """Timers due by then may ring."""
        self.is_told = False
        """That it stays shut."""

    def begin(self, certain_ms: int, now_s: float, pace_ms: int) -> None:
        """Begin a round, where a timer is due that none covers: the broker will be asked now."""
        if not self.timers.any_due(certain_ms) or len(self.rounds) >= ROUNDS_MAX:
            return
        newest = self.rounds[-1] if self.rounds else None
        if newest is not None and newest.ends is None:  # its ends were asked for in vain
            newest.covers_ms = certain_ms
            return
        covered_ms = newest.covers_ms if newest is not None else self.passed_ms
        if certain_ms > covered_ms and certain_ms - covered_ms >= pace_ms:
            self.rounds.append(Round(certain_ms, now_s))

    @property
    def waits(self) -> bool:
        """Whether a look would bring a round on."""
        return any(each.last is None for each in self.rounds)


class Reading(Protocol):
    """How far the task has come with `completions`."""

    def has_passed(self, end: int) -> bool:
        """Whether everything below `end` is decided."""


class Gates:
    """The lanes of one task.

    Args:
        completions: The task's own partition.
        pace_s: Shortest time between two looks.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        looks: Looks,
        clock: BrokerClock,
        completions: TopicPartition,
        reading: Reading,
        *,
        pace_s: float,
    ) -> None:
        self.lanes = lanes
        self._looks = looks
        self._clock = clock
        self._completions = completions
        self._reading = reading
        self._pace_s = pace_s
        self._wanted: Wanted | None = None
        self._look_s = clock.monotonic_s()

    def go_on(self) -> None:
        """Move every round on as far as it goes without waiting."""
        certain_ms = self._certain_ms()
        for lane in self.lanes:
            if lane.passed_ms > certain_ms:  # a clock that went back takes back what it covered
                lane.passed_ms = certain_ms
                for each in lane.rounds:
                    each.covers_ms = min(each.covers_ms, certain_ms)
        if self._wanted is None and self._clock.monotonic_s() >= self._look_s:
            self._ask(certain_ms)
        self._looks.go_on()
        if self._wanted is not None and self._wanted.is_over:
            self._take(self._wanted)
        for lane in self.lanes:
            if lane.rounds:
                self._finish(lane)

    def _certain_ms(self) -> int:
        """What the broker's clock has passed, however wrong ours may be."""
        return self._clock.now_ms() - self._clock.uncertainty_ms

    def _ask(self, certain_ms: int) -> None:
        """Look, for every round that waits for it."""
        now_s = self._clock.monotonic_s()
        for lane in self.lanes:
            lane.begin(certain_ms, now_s, int(self._pace_s * 1000))
        waiting = [lane for lane in self.lanes if lane.waits]
        if not waiting:
            return
        fresh = {lane.before.topic for lane in waiting if lane.before is not None and lane.rounds[-1].ends is None}
        known = {
            lane.before: [each.ends for each in lane.rounds if each.last is None and each.ends is not None]
            for lane in waiting
            if lane.before is not None
        }
        self._look_s = now_s + self._pace_s
        self._wanted = Wanted(fresh, known, self._completions)
        self._looks.want(self._wanted)

    def _take(self, wanted: Wanted) -> None:
        self._wanted = None
        found = wanted.answer()
        if found is None:  # the broker did not answer; the next look tries again
            return
        now_s = self._clock.monotonic_s()
        for lane in self.lanes:
            last: int | None = None
            for each in reversed(lane.rounds):
                if each.ends is None:
                    each.ends = {} if lane.before is None else found.ends.get(lane.before.topic)
                if (
                    each.last is None
                ):  # behind what is read later nothing is left, even of a topic that was made again meanwhile
                    each.last = found.last if last is None and self._is_passed(lane, each, found, now_s) else last
                last = each.last

    @staticmethod
    def _is_passed(lane: Lane, under_way: Round, found: Look, now_s: float) -> bool:
        """Whether a round has nothing to wait for before `completions`."""
        if under_way.ends is None:
            return False
        if lane.before is None or (lane.patience_s is not None and now_s - under_way.since_s >= lane.patience_s):
            return True
        return are_taken_over(under_way.ends, found.taken.get(lane.before, {}))

    def _finish(self, lane: Lane) -> None:
        """End the rounds that have come to their end; say so when the first does not for long."""
        rounds = lane.rounds
        while rounds and rounds[0].last is not None and self._reading.has_passed(rounds[0].last):
            lane.passed_ms = rounds.popleft().covers_ms
        if not self._is_shut(lane):
            lane.is_told = False
        elif not lane.is_told:
            lane.is_told = True
            logger.warning(
                "deadlines are held back: what came in before them is not taken over yet",
                partition=self._completions.partition,
                topic=lane.before.topic if lane.before is not None else self._completions.topic,
                group=lane.before.group if lane.before is not None else None,
            )

    def _is_shut(self, lane: Lane) -> bool:
        """Whether its first round has been under way for long."""
        if not lane.rounds:
            return False
        return (self._clock.monotonic_s() - lane.rounds[0].since_s) * 1000 >= limits.GATE_SHUT_TOLD_MS

    # --- asked by the timers ---------------------------------------------------------------------------------------------------------

    def may_ring(self) -> bool:
        """Whether a timer may ring now."""
        return any(lane.timers.any_due(lane.passed_ms) for lane in self.lanes)

    def ring(self, room: int) -> list[bytes]:
        """Keys of at most `room` timers that ring now."""
        found: list[bytes] = []
        for lane in self.lanes:
            if len(found) < room and lane.timers.any_due(lane.passed_ms):
                found += lane.timers.due(lane.passed_ms, room - len(found))
        return found

    def next_due_ms(self) -> int | None:
        """When to look at them again."""
        now_ms = self._clock.now_ms()
        due = [due_ms for lane in self.lanes if (due_ms := self._due_ms(lane, now_ms)) is not None]
        return min(due, default=None)

    def _due_ms(self, lane: Lane, now_ms: int) -> int | None:
        if not lane.rounds:
            next_ms = lane.timers.next_ms()
            return None if next_ms is None else next_ms + self._clock.uncertainty_ms
        if self._wanted is not None or lane.rounds[0].last is not None:
            return now_ms + GATED_POLL_MS
        return now_ms + max(int((self._look_s - self._clock.monotonic_s()) * 1000), GATED_POLL_MS)

    def held(self) -> int:
        """How many timers are held back by a gate that has been shut for long."""
        certain_ms = self._certain_ms()
        return sum(lane.timers.count_due(certain_ms) for lane in self.lanes if self._is_shut(lane))
