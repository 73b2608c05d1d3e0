"""The core task: one partition's executions, units, interactions and items (DESIGN 4 to 7).

    records, pool results, timers -> events -> deciding -> decisions -> performed over the overlay -> committed -> released

Theory of operation. The loop drives the task through `streams.engine.task.Task`; the task is put together from parts, each with one concern:

    rows        state/tables/rows.py         the rows, as the open batch sees them and as they are committed
    agenda      streams/roles/core/agenda.py       what is decided next, what waits for the commit
    intake      streams/roles/core/intake.py       records become events, projected first where a step says so
    deadlines   streams/roles/core/deadlines.py    timers ring; a deadline never overtakes an answer
    deciders    streams/roles/core/deciders.py     the rows of an event, asked of the pure core (topologies)
    writer      streams/roles/core/writer.py      decisions that write records
    sessions    streams/roles/core/live_window.py     sources pulled, suffixes run
    work        streams/roles/core/local_work.py   segments, publications, collections
    retention   streams/roles/core/retention.py    deletes what ended long ago

What stays here is the batch: which events it has, folding the facts, advancing what it touched, and what happens when it is committed,
did not happen, or can never be committed. What starts local work waits in the agenda until the commit.

To keep in sync: a new kind of event needs a method in `Deciders.by_event`, a new kind of decision one in a part's `performers`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import structlog

from schemas import facts
from schemas.errors import PoisonRecord
from schemas.facts import Fact
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.folding import fold
from state.interaction import InteractionRecord, InteractionStatus
from state.keys import TABLES, interaction_key, item_key, prefix_span, span
from state.tables.rows import PartitionRows
from state.tables.timers import due_of
from streams.engine.pool import Finished
from streams.engine.restore import Restore, changelog_positions
from streams.engine.task import Event, Outputs
from streams.log.seam import Record, TopicPartition
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda, Perform
from streams.roles.core.deadlines import Deadlines
from streams.roles.core.deciders import Deciders
from streams.roles.core.events import (
    AnswerArrived,
    ContinuationArrived,
    ExecutionTouched,
    HeldAnswerMet,
    ItemsContinued,
    ItemsPulled,
    RetentionContinued,
    SweepContinued,
    TimerRang,
)
from streams.roles.core.intake import Intake
from streams.roles.core.live_window import Sessions
from streams.roles.core.local_work import LocalWork
from streams.roles.core.retention import Retention
from streams.roles.core.writer import Writer
from topologies.decisions.advance import advance
from topologies.decisions.decision import Append, Decision, Duplicate, HoldCompletion, NoOp
from topologies.decisions.ending import fail

logger = structlog.get_logger("kawait.core")

ADVANCES_MAX = 20
"""Rounds of `advance` for one execution in one batch; more means that it does not settle: a bug, not a workload."""


class CoreTask:
    """One partition of the core role; a `streams.engine.task.Task`."""

    def __init__(self, context: CoreContext, partition: int, inputs: tuple[TopicPartition, ...]) -> None:
        self.inputs = inputs
        self.partition = partition
        self._ctx = context
        self._pipeline = context.pipeline
        self._counts: Counter[tuple[str, str]] = Counter()
        self._tally: defaultdict[type, int] = defaultdict(int)
        self.rows = PartitionRows(context.stores, partition)
        self.agenda = Agenda(self, context.pool)
        self.intake = Intake(context, self.rows, self.agenda, partition)
        self.deadlines = Deadlines(context, partition, self._is_waiting)
        self.sessions = Sessions(context, self.rows, self.agenda)
        self.work = LocalWork(context, self.rows, self.agenda, self.sessions)
        self._retention = Retention(context, self.rows, self.agenda)
        self._writer = Writer(context, self.rows, partition, self._counts)
        self._write_fact = self._writer.fact
        self._changelog_at = {
            ord(prefix): TopicPartition(context.names.changelog(table), partition) for prefix, table in TABLES.items()
        }
        self._restore = self._restoring()
        self._decide_by = Deciders(
            context,
            self.rows,
            self.agenda,
            timers=self.deadlines.timers,
            intake=self.intake,
            sessions=self.sessions,
            retention=self._retention,
            writer=self._writer,
        ).by_event()
        self._perform_by = self._performers()
        self._follow_by = self._followers()

    # --- life ------------------------------------------------------------------------------------------------------------------------

    def _restoring(self) -> Restore:
        return Restore(
            self._ctx.log,
            self.rows.store,
            topics={self._ctx.names.changelog(table): prefix for prefix, table in TABLES.items()},
            partition=self.partition,
            clock=self._ctx.clock,
            delete_retention_ms=CHANGELOG_DELETE_RETENTION_MS,
            reopen=self.rows.reopen,
        )

    def restore(self, budget_s: float) -> bool:
        """Follow the changelogs to their end."""
        done = self._restore.step(budget_s)
        self._ctx.metrics.restoring(self.partition, *self._restore.progress())
        if done and self._restore.rebuilt_because:
            logger.info(
                "state rebuilt from the changelog", partition=self.partition, because=self._restore.rebuilt_because
            )
        return done

    def start(self) -> None:
        """Take up what the rows say is open: every open execution is looked at, every timer armed (BEHAVIOUR hole 2)."""
        for key, execution in self.rows.scan(*prefix_span("e")):
            if execution.is_terminal:
                continue
            self.deadlines.timers.arm(key, due_of(execution))
            self.agenda.wake(ExecutionTouched(execution.execution_id))
            if execution.await_unit_id is not None:
                self._take_up_unit(execution.await_unit_id)

    def _take_up_unit(self, unit_id: str) -> None:
        unit = self.rows.unit(unit_id)
        if unit is None or not unit.is_open:
            return
        for table in ("interactions", "items"):
            for key, row in self.rows.scan(*span(table, unit_id)):
                self.deadlines.timers.arm(key, due_of(row))
                if (
                    isinstance(row, InteractionRecord)
                    and row.status is InteractionStatus.PENDING
                    and row.answer is not None
                ):
                    self.agenda.wake(HeldAnswerMet(unit_id, row.item_index))
        if unit.dispatch_complete and unit.itemised and unit.cursor < (unit.expected or 0):
            self.agenda.sweeping[unit_id] = None

    def close(self) -> None:
        """Give the partition up: wait for effects under way, then close the store."""
        self.rows.is_closing = True
        self.work.join_effects()
        self._ctx.pool.forget(self)
        self.sessions.close()
        self._restore.close()
        self._ctx.metrics.gave_up(self.partition)
        self.rows.close()

    # --- events ------------------------------------------------------------------------------------------------------------------------

    def accept(self, records: Sequence[Record]) -> None:
        """Records of its inputs, in order."""
        self.intake.accept(records)

    def finished(self, finished: Finished) -> None:
        """A pool job of this task has ended; its tag is what takes the end (`Agenda.submit`)."""
        assert callable(finished.tag)
        finished.tag(finished.result, finished.error)

    def events(self, room: int) -> list[Event]:
        """What can be decided now: records and results in order, then due timers, then slices."""
        batch: list[Event] = []
        ready = self.agenda.ready
        while ready and len(batch) < room:
            event = ready.popleft()
            batch.append(event)
            if event.record is not None:
                self.intake.taken(event.record)
            room -= len(event.what.items) if isinstance(event.what, ItemsPulled) else 0
        batch += [Event(self, TimerRang(key)) for key in self.deadlines.ring(room - len(batch))]
        batch += [Event(self, SweepContinued(unit_id)) for unit_id in self.agenda.sweeping]
        if not batch and self._retention.is_due():
            batch.append(Event(self, RetentionContinued()))
        for session in self.sessions.want_parking():
            session.parking_asked = True
            batch.append(Event(self, ExecutionTouched(session.execution_id)))
        return batch

    def has_work(self) -> bool:
        """Whether `events` would return something now."""
        return bool(
            self.agenda.ready
            or self.agenda.sweeping
            or self.deadlines.may_ring()
            or self._retention.is_due()
            or self.sessions.want_parking()
        )

    def _is_waiting(self) -> bool:
        """Whether something that came in is not decided yet."""
        return self.intake.is_waiting or bool(self.agenda.ready)

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return self.intake.is_full

    def next_due_ms(self) -> int | None:
        """When the next timer or idle session is due."""
        due = [self.deadlines.next_due_ms()]
        idle_s = self.sessions.next_idle_s()
        if idle_s is not None:
            due.append(self._now() + int((idle_s - self._ctx.clock.monotonic_s()) * 1000) + 1)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def standing(self) -> tuple[int, float, int]:
        """Open interactions, age in seconds of the oldest of them, window slots taken."""
        sent = [
            due_ms - self._pipeline.await_step(int(key.rsplit(b".", 2)[1])).timeout_ms
            for key, due_ms in self.deadlines.timers.armed(b"i/")
        ]
        age_s = (self._now() - min(sent)) / 1000 if sent else 0.0
        return len(sent), max(age_s, 0.0), self.sessions.occupancy()

    def _now(self) -> int:
        return self._ctx.clock.now_ms()

    # --- the batch ---------------------------------------------------------------------------------------------------------------------

    def prefetch(self, events: Sequence[Event]) -> None:
        """Read the interactions and items that a batch names in one go."""
        keys: list[bytes] = []
        for _, what, _record in events:
            if isinstance(what, AnswerArrived):
                keys.append(interaction_key(what.ref.unit_id, what.ref.item_index))
            elif isinstance(what, ContinuationArrived):
                keys.append(item_key(what.completion.unit_id, what.completion.item_index))
            elif isinstance(what, ItemsContinued):
                tried = what.session.attempts
                known = [
                    (outcome.item_index in tried, item_key(outcome.unit_id, outcome.item_index))
                    for outcome in what.outcomes
                ]
                keys += [key for was_tried, key in known if was_tried]
                self.rows.overlay.assume_absent(key for was_tried, key in known if not was_tried)
            elif isinstance(what, ItemsPulled):
                execution = self.rows.execution(what.session.execution_id)
                if execution is not None and not execution.held:  # nothing was held for them: they are new
                    indexes = range(what.first_index, what.first_index + len(what.items))
                    self.rows.overlay.assume_absent(interaction_key(what.session.unit_id, index) for index in indexes)
        self.rows.overlay.prefetch(keys)

    def decide(self, event: Event, outputs: Outputs) -> None:
        """Decide one event over the overlay."""
        _, what, record = event
        if record is None:
            self.work.note_end(what)
        self._perform(self._decide_by[type(what)](what, record, outputs), outputs, event)

    def settle(self, outputs: Outputs) -> None:
        """Advance every execution that the batch touched until it waits for something."""
        touched = self.agenda.touched
        while touched:
            execution_id, _ = touched.popitem()
            for _round in range(ADVANCES_MAX):
                execution = self.rows.execution(execution_id)
                if execution is None:
                    break
                decisions = advance(self._pipeline, execution, self.rows.overlay, self.work, now_ms=self._now())
                if not decisions:
                    break
                self._perform(decisions, outputs, None)
            else:
                raise AssertionError(f"execution {execution_id} does not settle")
            touched.pop(execution_id, None)

    def quarantine(self, event: Event, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record; fail the execution of an event of our own making."""
        detail = f"{type(error).__name__}: {error}"
        self.work.note_end(event.what)
        if event.record is not None:
            self._writer.dead_record(event.record, PoisonRecord("not-committable", detail), outputs)
            return
        execution_id = _execution_id_of(event.what)
        execution = self.rows.execution(execution_id) if execution_id else None
        if execution is None or execution.is_terminal:
            return
        unit = self.rows.unit(execution.await_unit_id)
        failed = fail(self._pipeline, execution, unit, code="NOT_COMMITTABLE", message=detail, now_ms=self._now())
        self._perform(failed, outputs, None)

    # --- performing ----------------------------------------------------------------------------------------------------------------------

    def _performers(self) -> dict[type, Perform]:
        return {
            Append: self._do_append,
            **self._writer.performers(),
            **self.sessions.performers(),
            **self.work.performers(),
            HoldCompletion: self._do_nothing,
            Duplicate: self._do_nothing,
            NoOp: self._do_nothing,
        }

    def _perform(self, decisions: Iterable[Decision], outputs: Outputs, event: Event | None) -> None:
        performers = self._perform_by
        tally = self._tally
        for decision in decisions:
            kind = type(decision)
            tally[kind] += 1
            performers[kind](decision, outputs, event)

    def _do_append(self, decision: Append, outputs: Outputs, _event: Event | None) -> None:
        fact = decision.fact
        kind = type(fact)
        fold(self.rows.overlay, fact)
        self._write_fact(fact, outputs)
        self._tally[kind] += 1
        follow = self._follow_by.get(kind)
        if follow is not None:
            follow(fact)

    def _do_nothing(self, decision: HoldCompletion | Duplicate | NoOp, _outputs: Outputs, _event: Event | None) -> None:
        reason = getattr(decision, "reason", "")
        if reason:
            self._counts["reason", reason] += 1

    # --- facts that something follows, once they are committed ---------------------------------------------------------------------------

    def _followers(self) -> Mapping[type[Fact], Callable[[Any], None]]:
        return {
            facts.BoundaryInteractionDispatched: self._follow_dispatch,
            facts.BoundaryCompletionAdmitted: self.sessions.note,
            facts.ContinuationCompleted: self.sessions.note,
            facts.ContinuationAttemptFailed: self.sessions.note,
            facts.ContinuationSegmentCreated: self.sessions.note,
            facts.InteractionTimedOut: self.sessions.note,
            facts.SourceEnded: self.sessions.note,
            facts.BoundaryCompletionHeld: self._follow_hold,
            facts.BoundaryDispatchCompleted: self._follow_parking,
        }

    def _follow_dispatch(self, fact: facts.BoundaryInteractionDispatched) -> None:
        self.sessions.note(fact)
        if not fact.requested:
            self._judge_held(fact.unit_id, fact.item_index)

    def _follow_hold(self, fact: facts.BoundaryCompletionHeld) -> None:
        """An answer that is kept for an interaction which is there already is judged next."""
        row = self.rows.interaction(fact.unit_id, fact.item_index)
        assert row is not None
        if row.status is InteractionStatus.PENDING:
            self._judge_held(fact.unit_id, fact.item_index)

    def _judge_held(self, unit_id: str, item_index: int | None) -> None:
        self.agenda.after_commit(lambda: self.agenda.wake(HeldAnswerMet(unit_id, item_index)))

    def _follow_parking(self, fact: facts.BoundaryDispatchCompleted) -> None:
        unit = self.rows.unit(fact.unit_id)
        if unit is not None and unit.itemised:
            self.agenda.after_commit(lambda: self.agenda.sweeping.setdefault(fact.unit_id, None))

    # --- after the commit ----------------------------------------------------------------------------------------------------------------

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Rows the batch changed."""
        return self.rows.overlay.encoded()

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """Own partition number, explicitly (DESIGN 4)."""
        return self._changelog_at[key[0]], key[2:]

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """Make the batch the committed state; timers follow rows."""
        overlay, timers = self.rows.overlay, self.deadlines.timers
        own = {at: offset for at, offset in ends.items() if at.partition == self.partition}
        for key, record in overlay.staged.items():
            timers.arm(key, due_of(record) if record is not None else None)
        if rows:
            overlay.apply(dict(rows), changelog_positions(own, self._ctx.topic_ids, self._now()))
        else:
            overlay.drop()
        for kind, count in self._tally.items():
            self._counts["fact" if issubclass(kind, Fact) else "decision", kind.__name__] = count
        self._ctx.metrics.decided(self._counts)
        self._counts.clear()
        self._tally.clear()

    def release(self) -> None:
        """Start what the batch decided."""
        self.work.commit_ends()
        self.sessions.tell()
        self.agenda.act()
        self.work.commit_starts()
        self.sessions.go_on()

    def drop(self) -> None:
        """The batch did not happen."""
        self.rows.overlay.drop()
        self.agenda.drop()
        self.sessions.drop()
        self.work.drop()
        self._counts.clear()
        self._tally.clear()


def _execution_id_of(what: Any) -> str | None:
    """The execution that an event of our own making is about."""
    if isinstance(what, TimerRang):
        return what.key[2:].decode().split(".")[0]
    if hasattr(what, "execution_id"):
        return str(what.execution_id)
    if hasattr(what, "session"):
        return str(what.session.execution_id)
    return what.unit_id.rsplit(".", 1)[0] if hasattr(what, "unit_id") else None
