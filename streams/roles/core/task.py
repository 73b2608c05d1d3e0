"""The core task: one partition's executions, units, interactions and items (DESIGN 4 to 7).

    records, pool results, timers -> events -> deciders -> decisions -> performed over the overlay -> committed -> handed over

Theory of operation. The loop drives the task through `streams.engine.task.Task`; the task is put together from parts, each with one concern:

    rows        state/tables/rows.py               the committed rows, and the open batch over them
    agenda      streams/roles/core/agenda.py       what is decided next, what waits for the commit
    intake      streams/roles/core/intake.py       records become events, projected first where a step says so
    deadlines   streams/roles/core/deadlines.py    timers ring; a deadline never overtakes an answer
    deciders    streams/roles/core/deciders.py     the rows of an event, asked of the pure core (topologies)
    writer      streams/roles/core/writer.py       decisions that write records
    sessions    streams/roles/core/live_window.py  sources pulled, suffixes run
    work        streams/roles/core/local_work.py   segments, publications, collections
    retention   streams/roles/core/retention.py    deletes what ended long ago

What stays here is the batch: which events it has, folding the facts, advancing what it touched, and what happens when it is committed,
did not happen, or can never be committed. What starts local work waits in the agenda until the commit.

Every event has one decider and every decision one performer: the unions `CoreEvent` and `Decision` are compared with the tables by a test.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import structlog

from schemas import limits
from schemas.facts import Fact
from schemas.topics import CHANGELOG_DELETE_RETENTION_MS
from state.folding import fold
from state.interaction import InteractionRecord, InteractionStatus
from state.keys import TABLES, execution_key, interaction_key, item_key, prefix_span, span, step_of_key
from state.tables.rows import PartitionRows
from streams.engine.restore import Restore, changelog_positions
from streams.engine.task import Entry, Health, Outputs, Positions
from streams.log.seam import Record, TopicPartition
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.deadlines import Deadlines
from streams.roles.core.deciders import Deciders
from streams.roles.core.events import (
    AnswerArrived,
    ContinuationArrived,
    ExecutionTouched,
    ItemsContinued,
    ItemsPulled,
    RetentionContinued,
    SweepContinued,
    TimerRang,
    execution_id_of,
)
from streams.roles.core.intake import Intake
from streams.roles.core.live_window import FOLLOWED, Sessions
from streams.roles.core.local_work import LocalWork
from streams.roles.core.performing import Perform, merged
from streams.roles.core.retention import RetentionPasses
from streams.roles.core.writer import Writer
from streams.telemetry.tally import Tally
from topologies.decisions.advance import advance
from topologies.decisions.decision import (
    Append,
    DeadLetterRecord,
    Decision,
    Duplicate,
    EndSweep,
    HoldCompletion,
    NoOp,
    StartSweep,
)
from topologies.decisions.ending import give_up

logger = structlog.get_logger("kawait.core")

ADVANCES_MAX = 20
"""Rounds of `advance` for one execution in one batch; more means that it does not settle: a bug, not a workload."""


class CoreTask:
    """One partition of the core role; a `streams.engine.task.Task`."""

    def __init__(
        self, context: CoreContext, partition: int, inputs: tuple[TopicPartition, ...], positions: Positions
    ) -> None:
        self.inputs = inputs
        self.partition = partition
        self._ctx = context
        self._pipeline = context.pipeline
        self.tally = Tally(context.metrics)
        self.rows = PartitionRows(context.stores, partition, context.make_overlay)
        self._batch = self.rows.batch
        self.agenda = Agenda(self, context.pool)
        self.intake = Intake(context, self.rows, self.agenda, partition)
        self.deadlines = Deadlines(context, self.rows, partition, positions, self.is_waiting)
        self.sessions = Sessions(context, self.rows, self.agenda)
        self.work = LocalWork(context, self.rows, self.agenda)
        self._retention = RetentionPasses(context, self.rows, self.agenda)
        self._writer = Writer(context, self._batch, partition, self.tally)
        self._changelog_at = {
            ord(prefix): TopicPartition(context.names.changelog(table), partition) for prefix, table in TABLES.items()
        }
        self._restore = self._restoring()
        self.deciders = Deciders(
            context.pipeline,
            self._batch,
            context.signer,
            context.clock,
            offers=self.sessions,
            touch=self.agenda.touch,
        )
        self._decide = self.deciders.by_event()
        self._performers = self.performers()

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
        """Follow the changelogs to their end; without the broker's time no deadline can be set, so it is waited for too."""
        done = self._restore.step(budget_s) and self._ctx.clock.is_known
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
            self.deadlines.arm(key, execution)
            self.agenda.wake(ExecutionTouched(execution.execution_id))
            if execution.await_unit_id is not None:
                self._take_up_unit(execution.await_unit_id)

    def _take_up_unit(self, unit_id: str) -> None:
        unit = self.rows.unit(unit_id)
        if unit is None or not unit.is_open:
            return
        for table in ("interactions", "items"):
            for key, row in self.rows.scan(*span(table, unit_id)):
                self.deadlines.arm(key, row)
                is_pending = isinstance(row, InteractionRecord) and row.status is InteractionStatus.PENDING
                if is_pending and row.held is not None:
                    self.intake.judge_held(unit_id, row.item_index)
        if unit.dispatch_complete and unit.itemised and unit.cursor < (unit.expected or 0):
            self.agenda.sweep(unit_id)

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

    def events(self, room: int) -> list[Entry]:
        """What can be decided now: records and results in order, then due timers, then slices, which have a place in every batch.

        Timers have a share of the room, whatever waits, and no more.
        """
        share = min(max(limits.BATCH_RECORDS_MAX // limits.RINGS_SHARE, 1), room - self.agenda.is_waiting())
        rings = [Entry(self, TimerRang(key)) for key in self.deadlines.ring(share)]
        room -= len(rings)
        batch: list[Entry] = []
        for entry in self.agenda.take(room):
            batch.append(entry)
            if entry.record is not None:
                self.intake.taken(entry.record)
            room -= len(entry.event.items) if isinstance(entry.event, ItemsPulled) else 0
            if len(batch) >= room:
                break
        batch += rings
        batch += [Entry(self, SweepContinued(unit_id)) for unit_id in self.agenda.sweeps]
        if self._retention.is_due(is_busy=bool(batch)):
            batch.append(Entry(self, self._retention.next_slice()))
        batch += [Entry(self, touched) for touched in self.sessions.ask_parking()]
        return batch

    def has_work(self) -> bool:
        """Whether `events` would return something now."""
        return bool(
            self.agenda.is_waiting()
            or self.agenda.sweeps
            or self.deadlines.may_ring()
            or self._retention.is_due()
            or self.sessions.want_parking()
        )

    def is_waiting(self) -> bool:
        """Whether something that came in is not decided yet."""
        return self.intake.is_waiting or self.agenda.is_waiting()

    def full_inputs(self) -> Sequence[TopicPartition]:
        """Inputs whose reading should pause: a backlog of commands pauses no answers."""
        if self.intake.is_full:
            return self.inputs
        return [at for at in self.inputs if self.intake.is_full_of(at.topic)]

    def next_due_ms(self) -> int | None:
        """When the next timer or idle session is due."""
        due = [self.deadlines.next_due_ms()]
        idle_s = self.sessions.next_idle_s()
        if idle_s is not None:
            due.append(self._now() + int((idle_s - self._ctx.clock.monotonic_s()) * 1000) + 1)
        return min((due_ms for due_ms in due if due_ms is not None), default=None)

    def health(self) -> Health:
        """How many requests are open and for how long, and how full the windows are."""
        asked_ms = [
            due_ms - self._pipeline.await_step(step_of_key(key)).timeout_ms
            for key, due_ms in self.deadlines.open_requests()
        ]
        oldest_s = (self._now() - min(asked_ms)) / 1000 if asked_ms else 0.0
        return Health(len(asked_ms), max(oldest_s, 0.0), self.sessions.occupancy(), self.deadlines.held())

    def _now(self) -> int:
        return self._ctx.clock.now_ms()

    # --- the batch ---------------------------------------------------------------------------------------------------------------------

    def prefetch(self, entries: Sequence[Entry]) -> None:
        """Read the interactions and items that a batch names in one go."""
        keys: list[bytes] = []
        for _, event, _record in entries:
            if isinstance(event, AnswerArrived):
                keys.append(interaction_key(event.ref.unit_id, event.ref.item_index))
            elif isinstance(event, ContinuationArrived):
                keys.append(item_key(event.completion.unit_id, event.completion.item_index))
            elif isinstance(event, ItemsContinued):
                tried = event.session.attempts
                known = [
                    (
                        outcome.attempt > 1 or outcome.item_index in tried,
                        item_key(outcome.unit_id, outcome.item_index),
                    )
                    for outcome in event.outcomes
                ]
                keys += [key for was_tried, key in known if was_tried]
                self._batch.assume_absent(key for was_tried, key in known if not was_tried)
            elif isinstance(event, ItemsPulled):
                execution = self._batch.execution(event.session.execution_id)
                if execution is not None and not execution.held:  # nothing was held for them: they are new
                    indexes = range(event.first_index, event.first_index + len(event.items))
                    self._batch.assume_absent(interaction_key(event.session.unit_id, index) for index in indexes)
            elif isinstance(event, RetentionContinued):
                keys += map(execution_key, event.stubs)
        self._batch.prefetch(keys)

    def decide(self, entry: Entry, outputs: Outputs) -> None:
        """Decide one event over the overlay."""
        _, event, record = entry
        if record is None:
            self._note_own(event)
        self._perform(self._decide[type(event)](event, record), outputs, entry)

    def _note_own(self, event: object) -> None:
        """What the deciding of an event of our own making ends: local work, or the ringing of a timer."""
        self.work.note_end(event)
        if isinstance(event, TimerRang):
            self.deadlines.rang(event.key)

    def settle(self, outputs: Outputs) -> None:
        """Advance every execution that the batch touched until it waits for something."""
        while (execution_id := self.agenda.next_touched()) is not None:
            for _round in range(ADVANCES_MAX):
                execution = self._batch.execution(execution_id)
                if execution is None:
                    break
                decisions = advance(
                    self._pipeline, execution, self._batch, self.work, self.sessions, now_ms=self._now()
                )
                if not decisions:
                    break
                self._perform(decisions, outputs, None)
            else:
                raise AssertionError(f"execution {execution_id} does not settle")
            self.agenda.was_asked(execution_id)

    def quarantine(self, entry: Entry, error: Exception, outputs: Outputs) -> None:
        """Dead-letter a record; fail the execution of an event of our own making."""
        detail = f"{type(error).__name__}: {error}"
        self._note_own(entry.event)
        if entry.record is not None:
            self._perform([DeadLetterRecord("not-committable", detail)], outputs, entry)
            return
        execution_id = execution_id_of(entry.event)
        execution = self._batch.execution(execution_id) if execution_id is not None else None
        unit = self._batch.unit(execution.await_unit_id) if execution is not None else None
        self._perform(give_up(self._pipeline, execution, unit, detail, now_ms=self._now()), outputs, None)

    # --- performing ----------------------------------------------------------------------------------------------------------------------

    def performers(self) -> dict[type, Perform]:
        """Which kind of decision is performed by what; as many as `topologies.decisions.decision.Decision` has."""
        own: dict[type, Perform] = {
            Append: self._do_append,
            StartSweep: self._do_start_sweep,
            EndSweep: self._do_end_sweep,
            HoldCompletion: self._do_nothing,
            Duplicate: self._do_nothing,
            NoOp: self._do_nothing,
        }
        parts = (self._writer, self.intake, self.sessions, self.work, self._retention)
        return merged(own, *(part.performers() for part in parts))

    def _perform(self, decisions: Iterable[Decision], outputs: Outputs, entry: Entry | None) -> None:
        performers, kinds = self._performers, self.tally.kinds
        for decision in decisions:
            kind = type(decision)
            kinds[kind] += 1
            performers[kind](decision, outputs, entry)

    def _do_append(self, decision: Append, outputs: Outputs, _entry: Entry | None) -> None:
        fact: Fact = decision.fact
        kind = type(fact)
        fold(self._batch, fact)
        self._writer.fact(fact, outputs)
        self.tally.kinds[kind] += 1
        if kind in FOLLOWED:
            self.sessions.note(fact)

    def _do_start_sweep(self, decision: StartSweep, _outputs: Outputs, _entry: Entry | None) -> None:
        self.agenda.after_commit(lambda: self.agenda.sweep(decision.unit_id))

    def _do_end_sweep(self, decision: EndSweep, _outputs: Outputs, _entry: Entry | None) -> None:
        self.agenda.after_commit(lambda: self.agenda.swept(decision.unit_id))

    def _do_nothing(self, decision: HoldCompletion | Duplicate | NoOp, _outputs: Outputs, _entry: Entry | None) -> None:
        reason = getattr(decision, "reason", "")
        if reason:
            self.tally.count("reason", reason)
        if isinstance(decision, NoOp) and decision.detail:
            logger.warning(reason, detail=decision.detail)

    # --- after the commit ----------------------------------------------------------------------------------------------------------------

    def changes(self) -> Mapping[bytes, bytes | None]:
        """Rows the batch changed."""
        return self._batch.encoded()

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """Own partition number, explicitly (DESIGN 4)."""
        return self._changelog_at[key[0]], key[2:]

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """Make the batch the committed state; timers follow rows."""
        own = {at: offset for at, offset in ends.items() if at.partition == self.partition}
        changed = list(self._batch.changes())
        if rows:
            self._batch.apply(dict(rows), changelog_positions(own, self._ctx.topic_ids, self._now()))
        else:
            self._batch.drop()
        self.deadlines.commit(changed)
        self.tally.commit()

    def hand_over(self) -> None:
        """Start what the batch decided."""
        self.sessions.tell()
        self.agenda.act()
        self.work.commit()
        self.sessions.go_on()

    def drop(self) -> None:
        """The batch did not happen."""
        self._batch.drop()
        self.agenda.drop()
        self.sessions.drop()
        self.work.drop()
        self.deadlines.drop()
        self.tally.drop()
