"""The sessions of one core task: opened, recovered from rows, kept going, parked (DESIGN 7 'Live', 'Suspending', 'Handing over').

Theory of operation. A `streams.roles.core.session.Session` counts; this module does its work. It pulls items of the source while the window has room,
and runs the suffixes of offered items in chunks, both on the pool; their ends come back as `ItemsPulled`, `SourceFailed`, `ItemsContinued`.
A session hears of a fact, and is offered an answer, only once the batch is committed (`tell`): until then `note` and `offer` keep them.

    commit  ->  tell: facts, then offers  ->  acts that the batch decided (open, close)  ->  go_on: pull and run

Losing all of it costs repeated work only: `open` makes a session again from its unit's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from schemas import limits
from schemas.envelopes import ContinuationCompletion
from schemas.errors import CallTimeout
from schemas.facts import (
    BoundaryCompletionAdmitted,
    BoundaryInteractionDispatched,
    ContinuationAttemptFailed,
    ContinuationCompleted,
    ContinuationSegmentCreated,
    ContinuationSkipped,
    Fact,
    InteractionTimedOut,
    SourceEnded,
)
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus
from state.keys import interaction_key, item_index_of, span
from state.tables.rows import PartitionRows, TaskClosed
from state.unit import UnitRecord
from streams.author.chunks import Chunk, completion_of
from streams.author.errors import StepProcessEnded
from streams.author.segments import run_steps, time_limit_s
from streams.author.suffixes import suffix_limit_s
from streams.engine.pool import Ticket
from streams.engine.task import Entry, Outputs
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.events import ExecutionTouched, ItemsContinued, ItemsPulled, SourceFailed
from streams.roles.core.performing import Perform
from streams.roles.core.session import Session, Stream
from streams.roles.core.source import source_stream
from topologies.decisions.decision import CloseSession, Offer, OpenSession

FOLLOWED: frozenset[type[Fact]] = frozenset(
    {
        BoundaryInteractionDispatched,
        BoundaryCompletionAdmitted,
        ContinuationCompleted,
        ContinuationSkipped,
        ContinuationAttemptFailed,
        ContinuationSegmentCreated,
        InteractionTimedOut,
        SourceEnded,
    }
)
"""Facts that the session of their unit follows."""


class Offered(Chunk[tuple[int, int, bytes], list[bytes] | Exception]):
    """Suffixes being run for a live session; an entry is an item's index, attempt and completion."""

    offered: list[tuple[int, int]]
    """Index and attempt of the items that were taken for it; those that were too much at once have no entry."""


@dataclass(slots=True)
class Pull:
    """Items asked of a session's source."""

    session: Session
    stream: Stream
    count: int

    def run(self, ticket: Ticket) -> ItemsPulled:
        """On the pool."""
        items, ended = self.stream.pull(self.count, ticket.restart_limit)
        return ItemsPulled(self.session, self.session.next_index, items, ended)


class Sessions:
    """The sessions of one task, by unit."""

    def __init__(self, context: CoreContext, rows: PartitionRows, agenda: Agenda) -> None:
        self.by_unit: dict[str, Session] = {}
        self._ctx = context
        self._pipeline = context.pipeline
        self._rows = rows
        self._agenda = agenda
        self._opening: set[str] = set()
        self._noted: set[str] = set()
        """Units of which this batch has facts that their sessions learn once it is committed."""
        self._notes: list[tuple[Session, Fact]] = []
        self._offers: list[Offer] = []

    # --- what the rest of the task asks -------------------------------------------------------------------------------------------------

    def takes_offers(self, unit_id: str) -> bool:
        """Whether a live session feeds answers of the unit into its suffix."""
        session = self.by_unit.get(unit_id)
        return session is not None and session.live

    def has(self, unit_id: str) -> bool:
        """A session of it is open, or will be once this batch is committed."""
        return unit_id in self.by_unit or unit_id in self._opening

    def parking_count(self, unit: UnitRecord) -> int | None:
        """Items with a stored answer, when parking is all that the session can still do."""
        session = self.by_unit.get(unit.unit_id)
        if session is None or not session.wants_parking(self._ctx.clock.monotonic_s()):
            return None
        if unit.unit_id in self._noted:  # something happened in this very batch: the session does not count it yet
            return None
        return unit.settled - session.unanswered + len(session.waiting)

    def want_parking(self) -> bool:
        """Whether `ask_parking` would ask for anything."""
        return bool(self.by_unit) and next(self._to_be_parked(), None) is not None

    def ask_parking(self) -> list[ExecutionTouched]:
        """Ask, once, that executions be looked at whose session can only be parked."""
        asking = list(self._to_be_parked())
        for session in asking:
            session.parking_asked = True
        return [ExecutionTouched(session.execution_id) for session in asking]

    def _to_be_parked(self) -> Iterator[Session]:
        now_s = self._ctx.clock.monotonic_s()
        return (
            session for session in self.by_unit.values() if not session.parking_asked and session.wants_parking(now_s)
        )

    def next_idle_s(self) -> float | None:
        """When the next session will have been idle for too long."""
        idle = (session.idle_at_s() for session in self.by_unit.values() if not session.parking_asked)
        return min((at_s for at_s in idle if at_s is not None), default=None)

    def occupancy(self) -> int:
        """Window slots taken."""
        return sum(session.occupancy for session in self.by_unit.values())

    # --- what a batch decides -----------------------------------------------------------------------------------------------------------

    def performers(self) -> dict[type, Perform]:
        """The decisions about sessions; each waits for the commit."""
        return {Offer: self._do_offer, OpenSession: self._do_open, CloseSession: self._do_close}

    def _do_offer(self, decision: Offer, _outputs: Outputs, _entry: Entry | None) -> None:
        self._offers.append(decision)

    def _do_open(self, decision: OpenSession, _outputs: Outputs, _entry: Entry | None) -> None:
        self._opening.add(decision.unit_id)
        self._agenda.after_commit(lambda: self._open(decision.unit_id))

    def _do_close(self, decision: CloseSession, _outputs: Outputs, _entry: Entry | None) -> None:
        self._agenda.after_commit(lambda: self._close(decision.unit_id))

    def note(self, fact: Any) -> None:
        """Tell the session of a fact's unit, once it is committed."""
        session = self.by_unit.get(fact.unit_id)
        if session is not None:
            self._noted.add(fact.unit_id)
            self._notes.append((session, fact))

    def tell(self) -> None:
        """The batch is committed: facts that sessions follow, then what is offered to them."""
        now_s = self._ctx.clock.monotonic_s()
        for session, fact in self._notes:
            session.note(fact, now_s)
        for offer in self._offers:
            taker = self.by_unit.get(offer.unit_id)
            if taker is not None and taker.live:
                taker.offer(offer.item_index)
        self._forget_batch()

    def drop(self) -> None:
        """The batch did not happen."""
        self._forget_batch()
        self._opening.clear()

    def _forget_batch(self) -> None:
        self._notes.clear()
        self._offers.clear()
        self._noted.clear()

    def go_on(self) -> None:
        """Pull items where windows have room, and run the suffixes of offered ones."""
        self._opening.clear()
        for session in list(self.by_unit.values()):
            self._pump(session)

    def close(self) -> None:
        """Give all of them up."""
        for unit_id in list(self.by_unit):
            self._close(unit_id)

    # --- opening and closing ------------------------------------------------------------------------------------------------------------

    def _open(self, unit_id: str) -> None:
        rows = self._rows
        unit = rows.unit(unit_id)
        execution = rows.execution(unit.execution_id) if unit else None
        if unit is None or execution is None or not unit.is_open or unit_id in self.by_unit:
            return
        step = self._pipeline.await_step(unit.step_number)
        live = unit.live and step.live and self._ctx.live_sessions < limits.LIVE_SESSIONS_MAX
        stream = (
            None
            if unit.source_count is not None
            else source_stream(self._pipeline, self._ctx.author, rows, execution, unit)
        )
        session = Session(
            unit, step, stream, first=execution.step_index, live=live, now_s=self._ctx.clock.monotonic_s()
        )
        self._ctx.live_sessions += live
        self._recover(session, unit)
        self.by_unit[unit_id] = session

    def _recover(self, session: Session, unit: UnitRecord) -> None:
        """Rows to session: settled items are passed by, answered ones offered at once, dispatched ones awaited (DESIGN 7)."""
        if unit.dispatched == 0:
            return
        now_ms = self._ctx.clock.now_ms()
        items: dict[int, ItemRecord] = {}
        done: set[int] = set()
        for _, item in self._rows.scan(*span("items", unit.unit_id)):
            if item.status is ItemStatus.PENDING:
                items[item.item_index] = item
            else:
                done.add(item.item_index)
        for key, value in self._rows.scan(*span("interactions", unit.unit_id)):
            index = item_index_of(key)
            row: InteractionRecord = value
            if index is None or index >= unit.dispatched:
                continue
            if index in done:
                session.unanswered += row.status is InteractionStatus.TIMED_OUT
                continue
            waits = index in items and (items[index].due_ms or 0) > now_ms
            session.recover(index, answered=row.status is InteractionStatus.COMPLETED, waits=waits)
            if index in items:
                session.attempts[index] = items[index].attempt

    def _close(self, unit_id: str) -> None:
        session = self.by_unit.pop(unit_id, None)
        if session is not None:
            session.is_closed = True
            if session.stream is not None:
                session.stream.close()
            self._ctx.live_sessions -= session.live

    # --- pulling and running ------------------------------------------------------------------------------------------------------------

    def _pump(self, session: Session) -> None:
        """Ask for items while the window has room; run offered suffixes."""
        count = session.room()
        if count > 0:
            self._pull(session, count)
        while session.live and session.offers and session.running < session.chunk.jobs_max:
            self._submit_chunk(session)

    def _pull(self, session: Session, count: int) -> None:
        assert session.stream is not None
        pull = Pull(session, session.stream, count)
        session.is_pulling = True
        session.reserved += count

        def done(event: ItemsPulled | None, error: BaseException | None) -> None:
            self._pulled(pull, event, error)

        steps = run_steps(self._pipeline, session.first, session.step.index)
        self._agenda.submit(pull.run, done, limit_s=time_limit_s(steps))

    def _pulled(self, pull: Pull, event: ItemsPulled | None, error: BaseException | None) -> None:
        """A pull has ended; a stream that failed must not be read on: it would look like one that has ended."""
        session = pull.session
        session.is_pulling = False
        if event is None:
            session.reserved -= pull.count
            session.stream = None
            pull.stream.close()
            if not isinstance(error, TaskClosed):
                self._agenda.wake(SourceFailed(session, error or CallTimeout("no items")))
            return
        session.reserved -= pull.count - len(event.items)
        session.next_index += len(event.items)
        session.is_ended = session.is_ended or event.ended
        self._agenda.wake(event)

    def _submit_chunk(self, session: Session) -> None:
        step_index = session.step.index
        chunk = Offered([], session.chunk.items)
        chunk.offered = session.take_offers()
        session.running += 1
        results = chunk.results

        def job(ticket: Ticket) -> None:
            """Payloads are read here, on pull (DESIGN 6 'Bounds')."""
            began_s = self._ctx.clock.monotonic_s()
            self._read_completions(session, chunk)
            completions = [completion for _, _, completion in chunk.entries]
            self._ctx.author.run_suffixes(step_index, completions, results, ticket.restart_limit)
            chunk.seconds = self._ctx.clock.monotonic_s() - began_s

        def done(_nothing: object, error: BaseException | None) -> None:
            self._chunk_ended(session, chunk, error)

        self._agenda.submit(job, done, limit_s=suffix_limit_s(self._pipeline, step_index))

    def _read_completions(self, session: Session, chunk: Offered) -> None:
        """On the pool: read completions, as far as they fit into one job."""
        looked_at = size = 0
        while looked_at < len(chunk.offered) and size < limits.JOB_BYTES_MAX:
            some = chunk.offered[looked_at : looked_at + limits.READ_ROWS]
            rows = self._rows.committed([interaction_key(session.unit_id, index) for index, _ in some])
            for (index, attempt), row in zip(some, rows, strict=True):
                if row is not None and row.completion is not None:
                    chunk.entries.append((index, attempt, row.completion))
                    size += len(row.completion)
            looked_at += len(some)

    def _chunk_ended(self, session: Session, chunk: Offered, error: BaseException | None) -> None:
        session.running -= 1
        session.active_s = self._ctx.clock.monotonic_s()  # what ran is not decided yet: no time to park
        if session.is_closed or isinstance(error, TaskClosed):
            return
        if error is None:
            session.chunk.learn(len(chunk.results), chunk.seconds)
        elif (charged := chunk.blame(error)) is not None:
            chunk.results.append(charged)
        elif isinstance(error, StepProcessEnded):
            session.chunk.one_at_a_time()
        ran = {index for index, _, _ in chunk.entries[: len(chunk.results)]}
        session.offers.extendleft(index for index, _ in reversed(chunk.offered) if index not in ran)
        outcomes = [
            completion_of(session.execution_id, session.unit_id, index, attempt, result)
            for (index, attempt, _), result in zip(chunk.entries, chunk.results, strict=False)
        ]
        for some in _in_transactions(outcomes):
            self._agenda.wake(ItemsContinued(session, some))
        self._pump(session)


def _in_transactions(outcomes: list[ContinuationCompletion]) -> Iterator[list[ContinuationCompletion]]:
    """Outcomes in lists that a transaction can hold: an event is decided whole."""
    some: list[ContinuationCompletion] = []
    size = 0
    for outcome in outcomes:
        if size > limits.JOB_BYTES_MAX:
            yield some
            some, size = [], 0
        some.append(outcome)
        size += sum(map(len, outcome.outputs))
    if some:
        yield some
