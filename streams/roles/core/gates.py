"""Gates: what keeps a timer that may fail something from overtaking an answer that was there (DESIGN 8 policy 2, DECISIONS 6).

Theory of operation. Timers that wait for the same topic to be taken over stand in one lane. A lane goes in rounds, and a round covers the
timers that are due when it begins:

    1 ends      the high watermarks of the lane's topic, read after the timers' time: no answer that comes later counts
    2 passed    the role that takes the topic over has committed positions at or behind those ends
    3 last      the end of our `completions`, read after that
    4 open      everything up to that end is decided: the timers that the round covers may ring

The high watermark, not the stable offset: an answer may lie in a provider's open transaction. Steps 1 to 3 ask the broker, aside and for all
lanes at once, at most once in `limits.BESIDE_MS`. A gate that stays shut is told, and opens by nothing else; only where its lane has a
patience does it go on without step 2 after so long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import structlog

from schemas import limits
from schemas.errors import LogUnavailable
from state.tables.timers import TimerIndex
from streams.clock import BrokerClock
from streams.engine.aside import Aside, Asked
from streams.log.seam import Log, TopicPartition

logger = structlog.get_logger("kawait.core")

LOOK_TIMEOUT_S = 5.0

GATED_POLL_MS = 20
"""Pause between two turns while an answer of the broker, or the reading of what it said, is on its way."""


class Before(NamedTuple):
    """What lies before `completions`: a topic, and the group that takes it over."""

    topic: str
    group: str


Ends = Mapping[TopicPartition, int]


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
    told: bool = False


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
        self.round: Round | None = None
        self.passed_ms = 0
        """Timers due by then may ring."""


class Seen(NamedTuple):
    """What a look found of one lane."""

    ends: Ends
    is_passed: bool


class Look(NamedTuple):
    """What a look found: of each lane, and then the end of `completions`; None: not known."""

    lanes: list[Seen]
    last: int | None


class Reading(Protocol):
    """How far the task has come with `completions`."""

    def has_passed(self, end: int) -> bool:
        """Whether everything below `end` is decided."""


def look(log: Log, asked: Sequence[tuple[Before | None, Ends | None]], completions: TopicPartition) -> Look:
    """Read the ends that are not known yet, then how far they are taken over, then the end of `completions`, in this order.

    Ends that were read are kept if the rest fails: read again while answers keep coming they would move away.

    Raises:
        LogUnavailable: no answer.
    """
    fresh = _ends_of(log, {before.topic for before, ends in asked if before is not None and ends is None})
    seen = []
    for before, known in asked:
        if before is None:
            seen.append(Seen({}, is_passed=True))
            continue
        ends = known if known is not None else {at: end for at, end in fresh.items() if at.topic == before.topic}
        seen.append(Seen(ends, _is_taken_over(log, before.group, ends)))
    try:
        return Look(seen, log.end_offsets([completions], "uncommitted", LOOK_TIMEOUT_S)[completions])
    except LogUnavailable:
        return Look(seen, None)


def _ends_of(log: Log, topics: Iterable[str]) -> Ends:
    """The high watermarks of all partitions that the topics have now."""
    names = sorted(topics)
    known = log.topics(names, LOOK_TIMEOUT_S)
    missing = [name for name in names if name not in known]
    if missing:
        raise LogUnavailable(f"the topic {missing[0]} is not there")
    partitions = [TopicPartition(name, number) for name in names for number in range(known[name].partitions)]
    return log.end_offsets(partitions, "uncommitted", LOOK_TIMEOUT_S)


def _is_taken_over(log: Log, group: str, ends: Ends) -> bool:
    """Whether a group is known to have committed these positions; what it never committed it takes up from the log start."""
    try:
        committed = log.group_offsets(group, list(ends), LOOK_TIMEOUT_S)
        never = [at for at in ends if committed.get(at) is None]
        starts = log.start_offsets(never, LOOK_TIMEOUT_S) if never else {}
    except LogUnavailable:
        return False
    return all((starts[at] if at in starts else committed[at] or 0) >= end for at, end in ends.items())


class Gates:
    """The lanes of one task.

    Args:
        completions: The task's own partition.
        pace_s: Shortest time between two looks.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        log: Log,
        aside: Aside,
        clock: BrokerClock,
        completions: TopicPartition,
        reading: Reading,
        *,
        pace_s: float,
    ) -> None:
        self.lanes = lanes
        self._log = log
        self._aside = aside
        self._clock = clock
        self._completions = completions
        self._reading = reading
        self._pace_s = pace_s
        self._asked: Asked[Look] | None = None
        self._looked: list[Lane] = []
        """Lanes that the look under way is for."""
        self._look_s = clock.monotonic_s()

    def go_on(self) -> None:
        """Move every round on as far as it goes without waiting."""
        certain_ms = self._certain_ms()
        for lane in self.lanes:
            self._begin(lane, certain_ms)
        if self._asked is None and self._clock.monotonic_s() >= self._look_s:
            self._ask()
        if self._asked is not None and self._asked.is_over:
            self._take(self._asked)
        for lane in self.lanes:
            if lane.round is not None:
                self._finish(lane, lane.round)

    def _certain_ms(self) -> int:
        """What the broker's clock has passed, however wrong ours may be."""
        return self._clock.now_ms() - self._clock.uncertainty_ms

    def _begin(self, lane: Lane, certain_ms: int) -> None:
        """Begin a round where a timer is due that no round covers; a clock that went back takes back what it covered."""
        lane.passed_ms = min(lane.passed_ms, certain_ms)
        if lane.round is not None:
            lane.round.covers_ms = min(lane.round.covers_ms, certain_ms)
        elif lane.timers.any_due(certain_ms) and not lane.timers.any_due(lane.passed_ms):
            lane.round = Round(certain_ms, self._clock.monotonic_s())

    def _ask(self) -> None:
        """Look, for every round that waits for it."""
        waiting = [lane for lane in self.lanes if lane.round is not None and lane.round.last is None]
        if not waiting:
            return
        asked = [(lane.before, lane.round.ends if lane.round is not None else None) for lane in waiting]
        log, completions = self._log, self._completions
        self._look_s = self._clock.monotonic_s() + self._pace_s
        self._looked = waiting
        self._asked = self._aside.ask(lambda: look(log, asked, completions))

    def _take(self, asked: Asked[Look]) -> None:
        self._asked = None
        try:
            found = asked.answer()
        except LogUnavailable as error:
            logger.debug("what deadlines wait for is not known", detail=str(error))
            return
        for lane, seen in zip(self._looked, found.lanes, strict=True):
            if lane.round is not None:
                waited_s = self._clock.monotonic_s() - lane.round.since_s
                is_over = lane.patience_s is not None and waited_s >= lane.patience_s
                lane.round.ends = seen.ends
                lane.round.last = found.last if seen.is_passed or is_over else None

    def _finish(self, lane: Lane, under_way: Round) -> None:
        """End a round that has come to its end; say so when it does not for long."""
        if under_way.last is not None and self._reading.has_passed(under_way.last):
            lane.passed_ms, lane.round = under_way.covers_ms, None
        elif not under_way.told and self._is_shut(under_way):
            under_way.told = True
            logger.warning(
                "deadlines are held back: what came in before them is not taken over yet",
                partition=self._completions.partition,
                topic=lane.before.topic if lane.before is not None else self._completions.topic,
                group=lane.before.group if lane.before is not None else None,
            )

    def _is_shut(self, under_way: Round) -> bool:
        return (self._clock.monotonic_s() - under_way.since_s) * 1000 >= limits.GATE_SHUT_TOLD_MS

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
        next_ms = lane.timers.next_ms()
        if lane.round is None:
            return None if next_ms is None else next_ms + self._clock.uncertainty_ms
        if self._asked is not None or lane.round.last is not None:
            return now_ms + GATED_POLL_MS
        return now_ms + max(int((self._look_s - self._clock.monotonic_s()) * 1000), GATED_POLL_MS)

    def held(self) -> int:
        """How many timers are held back by a gate that has been shut for long."""
        certain_ms = self._certain_ms()
        return sum(
            lane.timers.count_due(certain_ms)
            for lane in self.lanes
            if lane.round is not None and self._is_shut(lane.round)
        )
