"""Deciding: for each kind of event, find the rows it is about, ask the pure core, hand back its decisions.

Nothing is decided here. A method a kind of event: what outlived its execution, unit or session is a `NoOp` with a reason; the rest goes to
`topologies.<concern>` with the rows as the open batch sees them. An execution that the event may move on is touched, and advanced before the
batch ends. Decisions may come lazily: each is performed, and its fact folded, before the next is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from schemas import facts, limits
from schemas.envelopes import CancelCommand, ContinuationCompletion, ProviderCompletion, SubmitCommand
from schemas.errors import PoisonRecord, TokenRejected
from schemas.identity import interaction_id, parse_interaction_id
from schemas.limits import MESSAGE_CHARS_MAX
from state.execution import ExecutionRecord, ExecutionStatus
from state.interaction import InteractionRecord, InteractionStatus, held_completion
from state.item import ItemRecord
from state.keys import interaction_key, item_key
from state.tables.rows import PartitionRows
from state.tables.timers import TimerIndex, due_of
from state.unit import UnitRecord
from streams.author.errors import describe_error
from streams.author.shaping import shape
from streams.engine.task import Outputs
from streams.log.seam import Record
from streams.roles.context import CoreContext
from streams.roles.core.agenda import Agenda
from streams.roles.core.events import (
    AnswerArrived,
    CommandArrived,
    ContinuationArrived,
    ExecutionTouched,
    HeldAnswerMet,
    ItemsContinued,
    ItemsPulled,
    OutputPublished,
    PublicationBroke,
    RecordMisplaced,
    RecordPoisoned,
    ResultCollected,
    RetentionContinued,
    SegmentBroke,
    SegmentEnded,
    SourceFailed,
    StrangeAnswerArrived,
    SweepContinued,
    TimerRang,
)
from streams.roles.core.intake import Intake
from streams.roles.core.live_window import Sessions
from streams.roles.core.retention import Retention
from streams.roles.core.writer import Writer
from topologies.decisions import publication
from topologies.decisions.admission import Answer, Standing, admit, admit_held, unshaped
from topologies.decisions.continuation import complete_item, item_due, sweep
from topologies.decisions.decision import Append, CloseSession, Decision, NoOp, Refuse
from topologies.decisions.dispatch import dispatch_items
from topologies.decisions.ending import cancel, fail
from topologies.decisions.submission import submit
from topologies.decisions.timeout import expire
from topologies.pipeline.steps import AwaitStep, RunStep

Decide = Callable[[Any, Record | None, Outputs], Iterable[Decision]]


class Deciders:
    """What one task asks the pure core, by kind of event."""

    def __init__(
        self,
        context: CoreContext,
        rows: PartitionRows,
        agenda: Agenda,
        *,
        timers: TimerIndex,
        intake: Intake,
        sessions: Sessions,
        retention: Retention,
        writer: Writer,
    ) -> None:
        self._now = context.clock.now_ms
        self._pipeline = context.pipeline
        self._signer = context.signer
        self._rows = rows
        self._agenda = agenda
        self._timers = timers
        self._intake = intake
        self._sessions = sessions
        self._retention = retention
        self._writer = writer

    def by_event(self) -> dict[type, Decide]:
        """Which kind of event is decided by what."""
        return {
            CommandArrived: self._on_command,
            AnswerArrived: self._on_answer,
            ContinuationArrived: self._on_continuation,
            StrangeAnswerArrived: self._on_strange,
            RecordMisplaced: self._on_misplaced,
            RecordPoisoned: self._on_poison,
            ItemsPulled: self._on_pulled,
            SourceFailed: self._on_source_failed,
            ItemsContinued: self._on_continued,
            SegmentEnded: self._on_segment_ended,
            SegmentBroke: self._on_segment_broke,
            OutputPublished: self._on_published,
            PublicationBroke: self._on_publication_broke,
            ResultCollected: self._on_collected,
            TimerRang: self._on_timer,
            SweepContinued: self._on_sweep,
            HeldAnswerMet: self._on_held,
            ExecutionTouched: self._on_touched,
            RetentionContinued: self._on_retention,
        }

    def _on_command(self, what: CommandArrived, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        command = what.command
        execution = self._rows.execution(command.execution_id)
        self._agenda.touch(command.execution_id)
        match command:
            case SubmitCommand():
                problem = self._unfit(command)
                if problem is not None and execution is None:
                    self._writer.dead_record(record, PoisonRecord("wrong-shape", problem), outputs)
                    return []
                return submit(command, execution, now_ms=self._now())
            case CancelCommand():
                unit = self._rows.unit(execution.await_unit_id) if execution else None
                return cancel(execution, unit, reason=command.reason, now_ms=self._now())
            case _:
                self._writer.dead_record(
                    record, PoisonRecord("unsupported-command", "this release does not redrive executions"), outputs
                )
                return []

    def _unfit(self, command: SubmitCommand) -> str | None:
        """Why the input is none for this pipeline."""
        if command.pipeline != self._pipeline.name:
            return f"it is for pipeline {command.pipeline}, this is {self._pipeline.name}"
        if len(command.input) > limits.PAYLOAD_BYTES_MAX:
            return f"the input has {len(command.input)} bytes; at most {limits.PAYLOAD_BYTES_MAX} (limits.PAYLOAD_BYTES_MAX)"
        try:
            self._pipeline.input_type.validate_json(command.input)
        except ValueError as error:
            return f"not a {self._pipeline.input_type.name}: {error}"[:500]
        return None

    def _on_answer(self, what: AnswerArrived, record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        assert record is not None
        ref = what.ref
        unit_id = ref.unit_id
        rows = Standing(
            self._rows.execution(ref.execution_id),
            self._rows.unit(unit_id),
            self._rows.interaction(unit_id, ref.item_index),
        )
        answer = self._prepared(what, rows, record.timestamp_ms)
        self._touch_scalar(ref.execution_id, ref.item_index)
        return admit(self._pipeline, answer, rows, live=self._sessions.takes_offers(unit_id), now_ms=self._now())

    def _touch_scalar(self, execution_id: str, item_index: int | None) -> None:
        """An item's answer never advances its parent; a scalar's may."""
        if item_index is None:
            self._agenda.touch(execution_id)

    def _prepared(self, what: AnswerArrived, rows: Standing, recorded_at_ms: int) -> Answer:
        step = self._pipeline.steps[what.ref.step_index] if what.ref.step_index < len(self._pipeline.steps) else None
        completion = what.completion
        made = what.shape
        token_valid: bool | None = None
        if isinstance(step, AwaitStep):
            if made is None:
                actor = completion.actor
                made = shape(
                    step,
                    unshaped(step, rows.interaction, completion.payload, actor=actor, recorded_at_ms=recorded_at_ms),
                )
            if completion.resume_token is not None:
                token_valid = self._verifies(completion, rows, step.step_id)
        return Answer(completion, what.ref, recorded_at_ms, token_valid, made)

    def _verifies(self, completion: ProviderCompletion, rows: Standing, step_id: str) -> bool:
        if self._signer is None or rows.interaction is None:
            return False
        try:
            self._signer.verify(
                completion.resume_token,
                tenant_id=rows.execution.tenant_id if rows.execution else "",
                interaction_id=completion.interaction_id,
                correlation_id=completion.interaction_id,
                step_id=step_id,
                deadline_ms=rows.interaction.deadline_ms,
            )
        except TokenRejected:
            return False
        return True

    def _on_held(self, what: HeldAnswerMet, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        row = self._rows.interaction(what.unit_id, what.item_index)
        if row is None or row.answer is None:
            return [NoOp("held-answer-outlived")]
        execution_id = what.unit_id.rsplit(".", 1)[0]
        ref = parse_interaction_id(interaction_id(what.unit_id, what.item_index))
        completion = held_completion(row)
        step = self._pipeline.await_step(ref.step_index)
        recorded_at_ms = row.completed_at_ms or row.dispatched_at_ms
        if what.shape is None and step.projection is not None:
            self._agenda.after_commit(lambda: self._intake.project_held(what))
            return []
        made = what.shape or shape(
            step, unshaped(step, row, row.answer, actor=row.actor, recorded_at_ms=recorded_at_ms)
        )
        answer = Answer(completion, ref, recorded_at_ms, None, made)
        rows = Standing(self._rows.execution(execution_id), self._rows.unit(what.unit_id), row)
        self._touch_scalar(execution_id, what.item_index)
        return admit_held(
            self._pipeline, answer, rows, live=self._sessions.takes_offers(what.unit_id), now_ms=self._now()
        )

    def _on_continuation(
        self, what: ContinuationArrived, _record: Record | None, _outputs: Outputs
    ) -> Iterable[Decision]:
        return self._complete_item(what.completion, self._now())

    def _complete_item(self, outcome: ContinuationCompletion, now_ms: int) -> Iterable[Decision]:
        self._agenda.touch(outcome.execution_id)
        return complete_item(
            self._pipeline,
            outcome,
            self._rows.execution(outcome.execution_id),
            self._rows.unit(outcome.unit_id),
            self._rows.item(outcome.unit_id, outcome.item_index),
            now_ms=now_ms,
        )

    def _on_continued(self, what: ItemsContinued, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        """One after the other: what one outcome decides is performed before the next is decided."""
        now_ms = self._now()
        for outcome in what.outcomes:
            yield from self._complete_item(outcome, now_ms)

    def _on_strange(self, what: StrangeAnswerArrived, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        return [Refuse("unknown", f"{what.completion.interaction_id[:80]!r} is no interaction id", None)]

    def _on_misplaced(self, what: RecordMisplaced, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        self._writer.forward(what, record, outputs)
        return []

    def _on_poison(self, what: RecordPoisoned, record: Record | None, outputs: Outputs) -> Iterable[Decision]:
        self._writer.dead_record(record, what.error, outputs)
        return []

    def _on_pulled(self, what: ItemsPulled, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        session = what.session
        execution, unit = self._rows.execution(session.execution_id), self._rows.unit(session.unit_id)
        if (
            session.is_closed
            or execution is None
            or unit is None
            or not unit.is_open
            or unit.dispatched != what.first_index
            or execution.status is not ExecutionStatus.RUNNING  # the stream failed in this batch
        ):
            return [NoOp("session-outlived")]
        self._agenda.touch(session.execution_id)
        sizes = enumerate((len(item.request) for item in what.items), what.first_index)
        too_large = next((index for index, size in sizes if size > limits.PAYLOAD_BYTES_MAX), None)
        if too_large is not None:
            message = f"item {too_large} is larger than {limits.PAYLOAD_BYTES_MAX} bytes (limits.PAYLOAD_BYTES_MAX)"
            return fail(self._pipeline, execution, unit, code="REQUEST_TOO_LARGE", message=message, now_ms=self._now())
        indexes = range(what.first_index, what.first_index + len(what.items)) if execution.held else ()
        held = {index for index in indexes if self._rows.interaction(unit.unit_id, index) is not None}
        return dispatch_items(
            session.step, execution, unit, what.first_index, what.items, held, ended=what.ended, now_ms=self._now()
        )

    def _on_source_failed(self, what: SourceFailed, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        session = what.session
        if session.is_closed:
            return [NoOp("session-outlived")]
        return [CloseSession(session.unit_id), *self._segment_failed(session.execution_id, what.error)]

    def _segment_failed(self, execution_id: str, error: BaseException) -> list[Decision]:
        execution = self._rows.execution(execution_id)
        if execution is None or execution.is_terminal:
            return [NoOp("segment-outlived")]
        code, message, retryable = describe_error(error)
        unit = self._rows.unit(execution.await_unit_id)
        if execution.step_index == len(self._pipeline.steps):  # the result could not be gathered from what is stored
            return fail(self._pipeline, execution, unit, code=code, message=message, now_ms=self._now())
        if execution.status is not ExecutionStatus.RUNNING:
            return [NoOp("segment-outlived")]
        self._agenda.touch(execution_id)
        step = self._pipeline.steps[execution.step_index] if execution.step_index < len(self._pipeline.steps) else None
        retry = step.retry if isinstance(step, RunStep) else None
        if not retryable or retry is None or execution.attempt >= retry.attempts:
            return fail(self._pipeline, execution, unit, code=code, message=message, now_ms=self._now())
        retry_at_ms = self._now() + retry.delay_ms(execution.attempt)
        failed = facts.SegmentAttemptFailed(
            execution_id,
            self._now(),
            execution.step_index,
            execution.attempt,
            code,
            message[:MESSAGE_CHARS_MAX],
            retry_at_ms,
        )
        return [Append(failed)]

    def _on_segment_ended(self, what: SegmentEnded, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._rows.execution(what.execution_id)
        if execution is None or execution.status is not ExecutionStatus.RUNNING:
            return [NoOp("segment-outlived")]
        self._agenda.touch(what.execution_id)
        return [Append(facts.SegmentCompleted(what.execution_id, self._now(), what.stop, what.output, what.many))]

    def _on_segment_broke(self, what: SegmentBroke, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        return self._segment_failed(what.execution_id, what.error)

    def _on_published(self, what: OutputPublished, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._rows.execution(what.execution_id)
        if execution is None:
            return [NoOp("publication-outlived")]
        return publication.published(
            execution, self._rows.unit(execution.await_unit_id), what.outputs, now_ms=self._now()
        )

    def _on_publication_broke(
        self, what: PublicationBroke, _record: Record | None, _outputs: Outputs
    ) -> Iterable[Decision]:
        execution = self._rows.execution(what.execution_id)
        if execution is None:
            return [NoOp("publication-outlived")]
        code, message, retryable = describe_error(what.error)
        self._agenda.touch(what.execution_id)
        return publication.publication_failed(
            self._pipeline,
            execution,
            self._rows.unit(execution.await_unit_id),
            code=code,
            message=message,
            retryable=retryable,
            now_ms=self._now(),
        )

    def _on_collected(self, what: ResultCollected, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        execution = self._rows.execution(what.execution_id)
        if execution is None or execution.is_terminal:
            return [NoOp("collection-outlived")]
        unit = self._rows.unit(execution.await_unit_id)
        return publication.collected(self._pipeline, execution, unit, what.result, many=what.many, now_ms=self._now())

    def _on_timer(self, what: TimerRang, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        row = self._rows.overlay.get(what.key)
        due_ms = due_of(row) if row is not None else None
        if due_ms is None or due_ms > self._now():
            self._agenda.after_commit(lambda: self._timers.arm(what.key, due_ms))
            return [NoOp("timer-outlived")]
        if isinstance(row, ExecutionRecord):
            return self._execution_due(what.key, row)
        execution_id = row.unit_id.rsplit(".", 1)[0]
        execution, unit = self._rows.execution(execution_id), self._rows.unit(row.unit_id)
        live = self._sessions.takes_offers(row.unit_id)
        self._agenda.touch(execution_id)
        if unit is None or not unit.is_open:
            self._agenda.after_commit(lambda: self._timers.arm(what.key, None))
            return [NoOp("timer-outlived")]
        if isinstance(row, InteractionRecord):
            # An answer that waits to be judged was there first; the row is armed again once it is judged.
            if row.answer is not None and row.status is InteractionStatus.PENDING:
                self._agenda.after_commit(lambda: self._timers.arm(what.key, None))
                return [NoOp("held-answer-first")]
            return expire(self._pipeline, execution, unit, row, live=live, now_ms=self._now())
        interaction = self._rows.interaction(row.unit_id, row.item_index)
        decisions = item_due(self._pipeline, execution, unit, row, interaction, live=live, now_ms=self._now())
        if not any(isinstance(decision, Append) for decision in decisions):
            self._agenda.after_commit(lambda: self._timers.arm(what.key, None))  # offered, or held until the gates open
        return decisions

    def _execution_due(self, key: bytes, row: ExecutionRecord) -> Iterable[Decision]:
        self._agenda.touch(row.execution_id)
        if (
            row.status is ExecutionStatus.RUNNING
        ):  # a publication that never ended: its job is still out, look again later
            self._agenda.after_commit(lambda: self._timers.arm(key, self._now() + limits.CALL_TIMEOUT_DEFAULT_MS))
        return []

    def _on_sweep(self, what: SweepContinued, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        unit = self._rows.unit(what.unit_id)
        execution = self._rows.execution(unit.execution_id) if unit else None
        if unit is None or execution is None or not unit.is_open or unit.cursor >= (unit.expected or 0):
            self._agenda.after_commit(lambda: self._agenda.sweeping.pop(what.unit_id, None))
            return [NoOp("swept")]
        rows, cursor = self._slice(unit)
        self._agenda.touch(unit.execution_id)
        return sweep(self._pipeline, execution, unit, rows, cursor, now_ms=self._now())

    def _slice(self, unit: UnitRecord) -> tuple[list[tuple[InteractionRecord, ItemRecord | None]], int]:
        """The next rows of a sweep, as many as one event may bring, and the cursor behind them."""
        overlay = self._rows.overlay
        rows: list[tuple[InteractionRecord, ItemRecord | None]] = []
        cursor, size = unit.cursor, 0
        end = min(unit.cursor + limits.SLICE_ITEMS, unit.expected or 0)
        while cursor < end and size < limits.JOB_BYTES_MAX:
            some = range(cursor, min(cursor + limits.READ_ROWS, end))
            keys = [(interaction_key(unit.unit_id, index), item_key(unit.unit_id, index)) for index in some]
            overlay.prefetch(key for pair in keys for key in pair)
            for asked_key, item in keys:
                asked: InteractionRecord | None = overlay.get(asked_key)
                if asked is not None:
                    rows.append((asked, overlay.get(item)))
                    size += len(asked.completion or b"")
            cursor = some.stop
        return rows, cursor

    def _on_retention(self, _what: RetentionContinued, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        self._retention.delete_slice()
        return []

    def _on_touched(self, what: ExecutionTouched, _record: Record | None, _outputs: Outputs) -> Iterable[Decision]:
        self._agenda.touch(what.execution_id)
        return []
