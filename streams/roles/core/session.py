"""A session: the process-local hand-off of one itemised unit (DESIGN 7 'Live', 'Suspending', 'Handing over').

It pulls the source by demand and bounds what is unresolved by the window. A live session also feeds admitted completions into the suffix;
a session that is not live only dispatches. It holds ids and counts, no payloads, and everything in it can be made again from rows: losing
it costs repeated work, never a result.

    reserved     items asked of the source, not dispatched yet           |  reserved + unresolved <= window
    unresolved   live: dispatched without output;  else: without answer  |
    waiting      answered without output: offered, running, or between attempts
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol

from schemas import limits
from schemas.facts import (
    BoundaryCompletionAdmitted,
    BoundaryInteractionDispatched,
    ContinuationAttemptFailed,
    ContinuationCompleted,
    ContinuationSkipped,
    Fact,
    InteractionTimedOut,
    SourceEnded,
)
from state.unit import UnitRecord
from streams.author.chunks import ChunkSize
from topologies.pipeline.items import SourceItem
from topologies.pipeline.steps import AwaitStep


class Stream(Protocol):
    """The items that enter a unit, past what was dispatched."""

    def pull(self, count: int, before_each: Callable[[], None], /) -> tuple[list[SourceItem], bool]:
        """The next items, at most `count`, and whether the stream has ended with them; for the pool."""

    def close(self) -> None:
        """Nobody will pull any more."""


class Session:
    """One open unit on this worker; used by the loop's thread only."""

    def __init__(
        self, unit: UnitRecord, step: AwaitStep, stream: Stream | None, *, first: int, live: bool, now_s: float
    ) -> None:
        self.unit_id = unit.unit_id
        self.execution_id = unit.execution_id
        self.step = step
        self.first = first
        """First step of the segment that makes the stream."""
        self.live = live
        self.stream = stream
        self.is_ended = unit.source_count is not None
        self.is_pulling = False
        self.next_index = unit.dispatched
        self.reserved = 0
        self.unresolved: set[int] = set()
        self.waiting: set[int] = set()
        self.offers: deque[int] = deque()
        self.attempts: dict[int, int] = {}
        """Attempt of the items that have an item row without outputs; the others are at their first, without a row."""
        self.unanswered = 0
        """Items that were left out because no answer came."""
        self.running = 0
        self.chunk = ChunkSize()
        self.is_closed = False
        self.parking_asked = False
        self.active_s = now_s

    @property
    def occupancy(self) -> int:
        """Window slots taken."""
        return self.reserved + len(self.unresolved)

    def room(self) -> int:
        """Items that may be pulled now."""
        if self.is_pulling or self.is_ended or self.is_closed or self.stream is None:
            return 0
        return min(self.step.window - self.occupancy, limits.PULL_ITEMS_MAX)

    def recover(self, item_index: int, *, answered: bool, waits: bool) -> None:
        """Take over one dispatched item without output from its rows: offer it, or await its answer or its next attempt."""
        if self.live or not answered:
            self.unresolved.add(item_index)
        if answered:
            self.waiting.add(item_index)
            if self.live and not waits:
                self.offers.append(item_index)

    def take_offers(self) -> list[tuple[int, int]]:
        """The next chunk of offered items: index and attempt."""
        count = min(self.chunk.items, len(self.offers))
        indexes = [self.offers.popleft() for _ in range(count)]
        return [(index, self.attempts.get(index, 1)) for index in indexes]

    def note(self, fact: Fact, now_s: float) -> None:
        """A fact of its unit was committed."""
        self.active_s = now_s
        self.parking_asked = False
        note = self._noted_by.get(type(fact))
        if note is not None:
            note(self, fact)

    def _dispatched(self, fact: BoundaryInteractionDispatched) -> None:
        if fact.item_index is not None:
            self.reserved -= 1
            self.unresolved.add(fact.item_index)

    def _admitted(self, fact: BoundaryCompletionAdmitted) -> None:
        if fact.item_index is not None:
            self.waiting.add(fact.item_index)
            if not self.live:
                self.unresolved.discard(fact.item_index)

    def _settled(self, fact: ContinuationCompleted | ContinuationSkipped | ContinuationAttemptFailed) -> None:
        self.unresolved.discard(fact.item_index)
        self.waiting.discard(fact.item_index)
        self.attempts.pop(fact.item_index, None)

    def _failed(self, fact: ContinuationAttemptFailed) -> None:
        if fact.retry_at_ms is None:
            self._settled(fact)
        else:
            self.attempts[fact.item_index] = fact.attempt + 1

    def _timed_out(self, fact: InteractionTimedOut) -> None:
        if fact.resolution == "skip":
            self.unanswered += 1

    def _source_ended(self, _fact: SourceEnded) -> None:
        self.is_ended = True

    _noted_by: ClassVar[Mapping[type[Fact], Callable[[Session, Any], None]]] = {
        BoundaryInteractionDispatched: _dispatched,
        BoundaryCompletionAdmitted: _admitted,
        ContinuationCompleted: _settled,
        ContinuationSkipped: _settled,
        ContinuationAttemptFailed: _failed,
        InteractionTimedOut: _timed_out,
        SourceEnded: _source_ended,
    }
    """What it makes of a fact; others tell it nothing."""

    def offer(self, item_index: int) -> None:
        """An admitted completion, committed."""
        self.offers.append(item_index)

    def idle_at_s(self) -> float | None:
        """When the session has been idle for `live.idle`, or None while it is not."""
        if not self.is_ended or self.offers or self.running:
            return None
        return self.active_s + self.step.idle_ms / 1000

    def wants_parking(self, now_s: float) -> bool:
        """Whether parking the unit is all that is left to do."""
        if not self.is_ended or self.running or (self.live and self.offers):
            return False
        idle_at_s = self.idle_at_s()
        return not self.live or (idle_at_s is not None and now_s >= idle_at_s)
