"""Deciders: for each kind of event, find the rows it is about, ask the pure core, hand back its decisions.

Nothing is decided here, and nothing is done. A method a kind of event: it gives `topologies.decisions` the rows as the open batch sees them,
and says which execution the event may move on (`touch`): that one is advanced before the batch ends. Decisions may come lazily: each is
performed, and its fact folded, before the next is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from connectors.resume_token import TokenSigner
from schemas import limits
from schemas.envelopes import CancelCommand, ContinuationCompletion, NoteInputMoved, ProviderCompletion, SubmitCommand
from schemas.errors import TokenRejected
from schemas.identity import execution_of, interaction_id, parse_interaction_id
from state.execution import ExecutionRecord
from state.interaction import InteractionRecord, kept_completion
from state.item import ItemRecord
from state.keys import interaction_key, item_key
from state.tables.overlay import Overlay
from state.unit import UnitRecord
from streams.author.errors import describe_error
from streams.author.shaping import shape
from streams.clock import Clock
from streams.log.seam import Record
from streams.roles.core.events import (
    AnswerArrived,
    CommandArrived,
    ContinuationArrived,
    ExecutionTouched,
    HeldAnswerMet,
    ItemsContinued,
    ItemsPulled,
    LookedAhead,
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
from topologies.decisions import publication
from topologies.decisions.admission import Answer, Standing, admit, admit_held, refuse_stranger, unshaped
from topologies.decisions.ahead import looked_ahead
from topologies.decisions.continuation import complete_item, item_due, sweep
from topologies.decisions.decision import CloseSession, DeadLetterRecord, Decision, EndSweep, Forward, NoOp
from topologies.decisions.dispatch import dispatch_items
from topologies.decisions.ending import cancel
from topologies.decisions.retention import forget
from topologies.decisions.segment import segment_ended, segment_failed
from topologies.decisions.submission import input_moved, submit
from topologies.decisions.timeout import expire
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep

Decide = Callable[[Any, Record | None], Iterable[Decision]]


class Offers(Protocol):
    """Who takes completions on this process."""

    def takes_offers(self, unit_id: str) -> bool:
        """Whether a live session feeds answers of the unit into its suffix."""


class Deciders:
    """What one task asks the pure core, by kind of event.

    Args:
        batch: The rows as the open batch sees them.
        signer: Judges tokens; None: the pipeline has none.
        touch: Takes executions that an event may move on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        batch: Overlay,
        signer: TokenSigner | None,
        clock: Clock,
        *,
        offers: Offers,
        touch: Callable[[str], None],
    ) -> None:
        self._pipeline = pipeline
        self._batch = batch
        self._signer = signer
        self._now = clock.now_ms
        self._offers = offers
        self._touch = touch

    def by_event(self) -> Mapping[type, Decide]:
        """Which kind of event is decided by what; as many as `streams.roles.core.events.CoreEvent` has."""
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
            LookedAhead: self._on_looked_ahead,
            TimerRang: self._on_timer,
            SweepContinued: self._on_sweep,
            HeldAnswerMet: self._on_held,
            ExecutionTouched: self._on_touched,
            RetentionContinued: self._on_retention,
        }

    # --- records -------------------------------------------------------------------------------------------------------------------------

    def _on_command(self, event: CommandArrived, _record: Record | None) -> Iterable[Decision]:
        command = event.command
        execution = self._batch.execution(command.execution_id)
        self._touch(command.execution_id)
        match command:
            case SubmitCommand():
                return submit(self._pipeline, command, execution, now_ms=self._now())
            case CancelCommand():
                return cancel(execution, self._unit_of(execution), reason=command.reason, now_ms=self._now())
            case NoteInputMoved():
                return input_moved(execution, command.moved_to, now_ms=self._now())
            case _:
                return [DeadLetterRecord("unsupported-command", "this version does not redrive executions")]

    def _on_answer(self, event: AnswerArrived, _record: Record | None) -> Iterable[Decision]:
        batch, ref = self._batch, event.ref
        unit_id, item_index = ref.unit_id, ref.item_index
        rows = Standing(batch.execution(ref.execution_id), batch.unit(unit_id), batch.interaction(unit_id, item_index))
        answer = self._prepared(event, rows)
        if item_index is None:  # an item's answer never advances its parent; a scalar's may
            self._touch(ref.execution_id)
        return admit(self._pipeline, answer, rows, live=self._offers.takes_offers(unit_id), now_ms=self._now())

    def _prepared(self, event: AnswerArrived, rows: Standing) -> Answer:
        """The answer with its shape and what its token proves."""
        completion, ref, made, recorded_at_ms = event.completion, event.ref, event.shape, event.completed_at_ms
        step = self._pipeline.steps[ref.step_index] if ref.step_index < len(self._pipeline.steps) else None
        token_valid: bool | None = None
        if isinstance(step, AwaitStep):
            if made is None:
                made = shape(step, unshaped(step, rows.interaction, completion, recorded_at_ms))
            if completion.resume_token is not None:
                token_valid = self._verifies(completion, rows, step.step_id)
        return Answer(completion, ref, recorded_at_ms, token_valid, made)

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

    def _on_strange(self, event: StrangeAnswerArrived, _record: Record | None) -> Iterable[Decision]:
        return refuse_stranger(event.completion)

    def _on_misplaced(self, event: RecordMisplaced, _record: Record | None) -> Iterable[Decision]:
        return [Forward(event.home)]

    def _on_poison(self, event: RecordPoisoned, _record: Record | None) -> Iterable[Decision]:
        return [DeadLetterRecord(event.error.reason, str(event.error))]

    # --- items ---------------------------------------------------------------------------------------------------------------------------

    def _on_continuation(self, event: ContinuationArrived, _record: Record | None) -> Iterable[Decision]:
        self._touch(event.completion.execution_id)
        return self._complete_item(event.completion, self._now())

    def _on_continued(self, event: ItemsContinued, _record: Record | None) -> Iterable[Decision]:
        """One after the other: what one outcome decides is performed before the next is decided."""
        now_ms = self._now()
        self._touch(event.session.execution_id)
        for outcome in event.outcomes:
            yield from self._complete_item(outcome, now_ms)

    def _complete_item(self, outcome: ContinuationCompletion, now_ms: int) -> Iterable[Decision]:
        batch, unit_id = self._batch, outcome.unit_id
        return complete_item(
            self._pipeline,
            outcome,
            batch.execution(outcome.execution_id),
            batch.unit(unit_id),
            batch.item(unit_id, outcome.item_index),
            now_ms=now_ms,
        )

    def _on_pulled(self, event: ItemsPulled, _record: Record | None) -> Iterable[Decision]:
        session = event.session
        if session.is_closed:
            return [NoOp("session-outlived")]
        execution, unit = self._batch.execution(session.execution_id), self._batch.unit(session.unit_id)
        self._touch(session.execution_id)
        return dispatch_items(
            self._pipeline,
            execution,
            unit,
            event.first_index,
            event.items,
            self._held(event, execution),
            ended=event.ended,
            now_ms=self._now(),
        )

    def _held(self, event: ItemsPulled, execution: ExecutionRecord | None) -> frozenset[int]:
        """Items whose answer was there before them."""
        if execution is None or not execution.held:
            return frozenset()
        indexes = range(event.first_index, event.first_index + len(event.items))
        unit_id = event.session.unit_id
        return frozenset(index for index in indexes if self._batch.interaction(unit_id, index) is not None)

    def _on_source_failed(self, event: SourceFailed, _record: Record | None) -> Iterable[Decision]:
        session = event.session
        if session.is_closed:
            return [NoOp("session-outlived")]
        return [CloseSession(session.unit_id), *self._segment_failed(session.execution_id, event.error)]

    def _on_held(self, event: HeldAnswerMet, _record: Record | None) -> Iterable[Decision]:
        unit_id, item_index = event.unit_id, event.item_index
        row = self._batch.interaction(unit_id, item_index)
        if row is None or row.held is None:
            return [NoOp("held-answer-outlived")]
        execution_id = execution_of(unit_id)
        ref = parse_interaction_id(interaction_id(unit_id, item_index))
        step = self._pipeline.await_step(ref.step_index)
        completion, recorded_at_ms = kept_completion(row, row.held), row.held.completed_at_ms
        made = event.shape or shape(step, unshaped(step, row, completion, recorded_at_ms))
        rows = Standing(self._batch.execution(execution_id), self._batch.unit(unit_id), row)
        has_token = completion.resume_token is not None
        token_valid = self._verifies(completion, rows, step.step_id) if has_token else None
        answer = Answer(completion, ref, recorded_at_ms, token_valid, made)
        if item_index is None:
            self._touch(execution_id)
        return admit_held(self._pipeline, answer, rows, live=self._offers.takes_offers(unit_id), now_ms=self._now())

    # --- local work ----------------------------------------------------------------------------------------------------------------------

    def _on_segment_ended(self, event: SegmentEnded, _record: Record | None) -> Iterable[Decision]:
        self._touch(event.execution_id)
        execution = self._batch.execution(event.execution_id)
        return segment_ended(
            self._pipeline, execution, stop=event.stop, output=event.output, many=event.many, now_ms=self._now()
        )

    def _on_segment_broke(self, event: SegmentBroke, _record: Record | None) -> Iterable[Decision]:
        return self._segment_failed(event.execution_id, event.error)

    def _segment_failed(self, execution_id: str, error: BaseException) -> Iterable[Decision]:
        self._touch(execution_id)
        execution = self._batch.execution(execution_id)
        code, message, retryable = describe_error(error)
        return segment_failed(
            self._pipeline,
            execution,
            self._unit_of(execution),
            code=code,
            message=message,
            retryable=retryable,
            now_ms=self._now(),
        )

    def _on_published(self, event: OutputPublished, _record: Record | None) -> Iterable[Decision]:
        execution = self._batch.execution(event.execution_id)
        return publication.published(execution, self._unit_of(execution), event.outputs, now_ms=self._now())

    def _on_publication_broke(self, event: PublicationBroke, _record: Record | None) -> Iterable[Decision]:
        self._touch(event.execution_id)
        execution = self._batch.execution(event.execution_id)
        code, message, retryable = describe_error(event.error)
        return publication.publication_failed(
            self._pipeline,
            execution,
            self._unit_of(execution),
            code=code,
            message=message,
            retryable=retryable,
            now_ms=self._now(),
        )

    def _on_collected(self, event: ResultCollected, _record: Record | None) -> Iterable[Decision]:
        execution = self._batch.execution(event.execution_id)
        unit = self._unit_of(execution)
        return publication.collected(self._pipeline, execution, unit, event.result, many=event.many, now_ms=self._now())

    def _on_looked_ahead(self, event: LookedAhead, _record: Record | None) -> Iterable[Decision]:
        self._touch(event.execution_id)
        execution = self._batch.execution(event.execution_id)
        code, message, _ = describe_error(event.error) if event.error is not None else (None, "", False)
        unit = self._unit_of(execution)
        return looked_ahead(self._pipeline, execution, unit, code=code, message=message, now_ms=self._now())

    # --- time ----------------------------------------------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerRang, _record: Record | None) -> Iterable[Decision]:
        batch, now_ms = self._batch, self._now()
        row = batch.get(event.key)
        if isinstance(row, ExecutionRecord):  # what is due is seen by whoever advances it
            self._touch(row.execution_id)
            return []
        if not isinstance(row, (InteractionRecord, ItemRecord)):
            return [NoOp("timer-outlived")]
        execution_id = execution_of(row.unit_id)
        execution, unit = batch.execution(execution_id), batch.unit(row.unit_id)
        live = self._offers.takes_offers(row.unit_id)
        self._touch(execution_id)
        if isinstance(row, InteractionRecord):
            return expire(self._pipeline, execution, unit, row, live=live, now_ms=now_ms)
        interaction = batch.interaction(row.unit_id, row.item_index)
        return item_due(self._pipeline, execution, unit, row, interaction, live=live, now_ms=now_ms)

    def _on_sweep(self, event: SweepContinued, _record: Record | None) -> Iterable[Decision]:
        unit = self._batch.unit(event.unit_id)
        if unit is None:
            return [EndSweep(event.unit_id)]
        rows, cursor = self._slice(unit)
        self._touch(unit.execution_id)
        execution = self._batch.execution(unit.execution_id)
        return sweep(self._pipeline, execution, unit, rows, cursor, now_ms=self._now())

    def _slice(self, unit: UnitRecord) -> tuple[list[tuple[InteractionRecord, ItemRecord | None]], int]:
        """The next rows of a sweep, as many as one event may bring, and the cursor behind them."""
        batch = self._batch
        rows: list[tuple[InteractionRecord, ItemRecord | None]] = []
        cursor, size = unit.cursor, 0
        end = min(unit.cursor + limits.SLICE_ITEMS, unit.expected or 0)
        while cursor < end and size < limits.JOB_BYTES_MAX:
            some = range(cursor, min(cursor + limits.READ_ROWS, end))
            keys = [(interaction_key(unit.unit_id, index), item_key(unit.unit_id, index)) for index in some]
            batch.prefetch(key for pair in keys for key in pair)
            for interaction_at, item in keys:
                interaction: InteractionRecord | None = batch.get(interaction_at)
                if interaction is not None:
                    rows.append((interaction, batch.get(item)))
                    size += len(interaction.completion or b"")
            cursor = some.stop
        return rows, cursor

    def _on_retention(self, event: RetentionContinued, _record: Record | None) -> Iterable[Decision]:
        return forget(event.keys, event.stubs, now_ms=self._now())

    def _on_touched(self, event: ExecutionTouched, _record: Record | None) -> Iterable[Decision]:
        self._touch(event.execution_id)
        return []

    def _unit_of(self, execution: ExecutionRecord | None) -> UnitRecord | None:
        """The unit that the execution waits at."""
        return self._batch.unit(execution.await_unit_id) if execution is not None else None
