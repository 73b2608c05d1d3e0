"""The continuation planner: what follows once answers and item outputs are stored (BEHAVIOUR 3, DESIGN 7).

    after a completion     scalar        -> the parent is resumed by `advance`, in the same batch
                           live session  -> Offer
                           parked        -> the item's continuation, once (behind the cursor; before it, the sweep emits it)
                           otherwise     -> HoldCompletion
    after parking          sweep in slices with a cursor: one continuation for each completed item
    after an item's suffix -> its outputs are stored; or it is tried again; or it is left out (`onError`); or it has failed
    all items settled      -> the parent is resumed once, at the next aggregate or at the end; or it fails (`advance`)

Gates (S3): dispatch of the unit is complete, the parent is parked on it, the item's completion is stored.
"""

from __future__ import annotations

from collections.abc import Iterable

from schemas import facts, limits
from schemas.envelopes import Continuation, ContinuationCompletion
from schemas.identity import interaction_id, letter_id
from schemas.limits import MESSAGE_CHARS_MAX
from state.execution import ExecutionRecord, ExecutionStatus
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus
from state.unit import UnitRecord
from topologies.decisions.decision import (
    Append,
    DeadLetterItem,
    Decisions,
    EmitContinuation,
    EndSweep,
    HoldCompletion,
    NoOp,
    Offer,
    WriteOutput,
)
from topologies.decisions.ending import fail
from topologies.pipeline.ends import TopicOutput
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import DeadLetterAndSkip, RunStep

_FAILURES_CHARS = MESSAGE_CHARS_MAX - 100
"""Of a message that names failed items: for the failures themselves."""


def gates_open(execution: ExecutionRecord, unit: UnitRecord) -> bool:
    """Whether completed items of the unit may be continued on the fallback path."""
    parked = execution.status is ExecutionStatus.WAITING_EXTERNAL and execution.await_unit_id == unit.unit_id
    return parked and unit.itemised and unit.is_open and unit.dispatch_complete


def after_completion(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    unit: UnitRecord,
    fact: facts.BoundaryCompletionAdmitted,
    *,
    live: bool,
    now_ms: int,
) -> Decisions:
    """Plan for one admitted completion; O(1) whatever the unit's size."""
    if fact.item_index is None:
        return []  # `advance` resumes the parent in the same batch
    if live and unit.live:
        return [Offer(unit.unit_id, fact.item_index)]
    if gates_open(execution, unit) and fact.item_index < unit.cursor:
        return emit(pipeline, execution, unit, fact.item_index, fact.completion, attempt=1, emissions=0, now_ms=now_ms)
    return [HoldCompletion("early-held" if not unit.dispatch_complete else "ahead-of-the-sweep")]


def emit(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    unit: UnitRecord,
    item_index: int,
    completion: bytes,
    *,
    attempt: int,
    emissions: int,
    now_ms: int,
) -> Decisions:
    """Emit the continuation record of one item; the wait for its answer has a deadline that doubles with each emission."""
    due_ms = now_ms + limits.CONTINUATION_TIMEOUT_MS * 2**emissions
    stop = pipeline.await_step(unit.step_number).suffix_stop
    created = facts.ContinuationSegmentCreated(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit.unit_id,
        item_index=item_index,
        attempt=attempt,
        next_step=unit.step_number + 1,
        due_ms=due_ms,
    )
    continuation = Continuation(
        execution_id=execution.execution_id,
        tenant_id=execution.tenant_id,
        pipeline=execution.pipeline,
        unit_id=unit.unit_id,
        item_index=item_index,
        attempt=attempt,
        step_index=unit.step_number,
        stop_index=stop,
        completion=completion,
        release=execution.release,
        step_id=unit.step_id,
    )
    return [Append(created), EmitContinuation(continuation)]


def sweep(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord,
    rows: Iterable[tuple[InteractionRecord, ItemRecord | None]],
    cursor: int,
    *,
    now_ms: int,
) -> Decisions:
    """Emit the continuations of one slice of a parked unit and move the cursor past it; with nothing left to emit, end the sweep."""
    if execution is None or not unit.is_open or unit.cursor >= (unit.expected or 0):
        return [EndSweep(unit.unit_id)]
    decisions: Decisions = []
    for interaction, item in rows:
        if interaction.status is not InteractionStatus.COMPLETED or interaction.completion is None:
            continue
        # A retry that fell due before the gates opened had its timer then; one that is due later is emitted by its timer.
        waits = item is not None and item.due_ms is not None and item.due_ms > now_ms
        if item is None or (item.status is ItemStatus.PENDING and not item.continued and not waits):
            attempt = item.attempt if item else 1
            decisions += emit(
                pipeline,
                execution,
                unit,
                interaction.item_index or 0,
                interaction.completion,
                attempt=attempt,
                emissions=0,
                now_ms=now_ms,
            )
    return [*decisions, Append(facts.ContinuationsSwept(execution.execution_id, now_ms, unit.unit_id, cursor))]


def complete_item(
    pipeline: Pipeline,
    result: ContinuationCompletion,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    item: ItemRecord | None,
    *,
    now_ms: int,
) -> Decisions:
    """Take the outcome of one item's suffix, from the live session or the continuation agent; a repeat adds nothing."""
    if execution is None or execution.is_terminal or unit is None or not unit.is_open:
        return [NoOp("unit-closed")]
    if item is not None and item.status is not ItemStatus.PENDING:
        return [NoOp("already-continued")]
    if result.attempt != (item.attempt if item else 1):
        return [NoOp("stale-attempt")]
    if not unit.itemised or not 0 <= result.item_index < unit.dispatched:
        return [NoOp("no-such-item")]
    if result.error_code is not None:
        return _failed(pipeline, result, execution, unit, now_ms=now_ms)
    done = facts.ContinuationCompleted(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit.unit_id,
        item_index=result.item_index,
        attempt=result.attempt,
        outputs=result.outputs,
    )
    to_topic = isinstance(pipeline.output, TopicOutput) and pipeline.await_step(unit.step_number).suffix_stop == len(
        pipeline.steps
    )
    outputs = [WriteOutput(execution.execution_id, payload) for payload in result.outputs] if to_topic else []
    return [Append(done), *outputs]


def _failed(
    pipeline: Pipeline, result: ContinuationCompletion, execution: ExecutionRecord, unit: UnitRecord, *, now_ms: int
) -> Decisions:
    """Another attempt where `retry` has one left; else the item is left out as its step says, or has failed.

    A failed item ends nobody: its execution fails once every item is settled (`topologies.decisions.advance`).
    """
    step = suffix_step(pipeline, unit)
    code, message = result.error_code or "STEP_FAILED", (result.error_message or "")[:MESSAGE_CHARS_MAX]
    again = result.retryable and step is not None and result.attempt < step.retry.attempts
    ruling = None if again else _failed_step(pipeline, unit, result.step_id)
    if ruling is not None and ruling.on_error is not None:
        return _left_out(ruling, result, execution, code, message, now_ms=now_ms)
    failed = facts.ContinuationAttemptFailed(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit.unit_id,
        item_index=result.item_index,
        attempt=result.attempt,
        error_code=code,
        error_message=message,
        retry_at_ms=now_ms + step.retry.delay_ms(result.attempt) if again and step is not None else None,
    )
    return [Append(failed)]


def _left_out(
    step: RunStep, result: ContinuationCompletion, execution: ExecutionRecord, code: str, message: str, *, now_ms: int
) -> Decisions:
    """Skip an item that failed at a step with `onError`, with a dead letter where that asks for one."""
    with_letter = isinstance(step.on_error, DeadLetterAndSkip)
    letter = letter_id(interaction_id(result.unit_id, result.item_index), result.attempt) if with_letter else None
    skipped = facts.ContinuationSkipped(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=result.unit_id,
        item_index=result.item_index,
        attempt=result.attempt,
        error_code=code,
        error_message=message,
        letter_id=letter,
    )
    if letter is None:
        return [Append(skipped)]
    dead = DeadLetterItem(
        execution.tenant_id, result.unit_id, result.item_index, step.step_id, letter, reason=code, detail=message
    )
    return [Append(skipped), dead]


def _failed_step(pipeline: Pipeline, unit: UnitRecord, step_id: str | None) -> RunStep | None:
    """The step whose `onError` rules a failed item: the one that it failed at, where that is known, else the first of the suffix."""
    suffix = pipeline.steps[unit.step_number + 1 : pipeline.await_step(unit.step_number).suffix_stop]
    found = next((step for step in suffix if step.step_id == step_id), None)
    return found if isinstance(found, RunStep) else suffix_step(pipeline, unit)


def fail_settled(pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord, *, now_ms: int) -> Decisions:
    """Every item of a unit is settled and some have failed: the execution fails, once, and names the first of them."""
    total, named = unit.settled, unit.failures
    share = _FAILURES_CHARS // max(len(named), 1)  # as many as are named find their place in the message
    told = [failure if len(failure) <= share else f"{failure[: share - 1]}…" for failure in named]
    more = [f"and {unit.failed - len(told)} more"] if unit.failed > len(told) else []
    message = f"{unit.failed} of {total} items failed: {'; '.join([*told, *more])}"
    return fail(pipeline, execution, unit, code="AWAIT_ITEM_CONTINUATION_FAILED", message=message, now_ms=now_ms)


def suffix_step(pipeline: Pipeline, unit: UnitRecord) -> RunStep | None:
    """The first step of the suffix: its `retry` rules the whole item continuation, and its `onError` where nobody knows what failed."""
    following = unit.step_number + 1
    step = pipeline.steps[following] if following < len(pipeline.steps) else None
    return step if isinstance(step, RunStep) else None


def item_due(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    item: ItemRecord,
    interaction: InteractionRecord | None,
    *,
    live: bool,
    now_ms: int,
) -> Decisions:
    """An item's retry is due, or its continuation record went unanswered."""
    if (
        execution is None
        or unit is None
        or not unit.is_open
        or item.status is not ItemStatus.PENDING
        or item.due_ms is None
        or item.due_ms > now_ms
    ):
        return [NoOp("timer-outlived")]
    if interaction is None or interaction.completion is None:
        return [NoOp("timer-outlived")]
    if live and unit.live and not item.continued:
        return [Offer(unit.unit_id, item.item_index)]
    if not gates_open(execution, unit):
        return [HoldCompletion("early-held")]
    if item.emissions >= limits.CONTINUATION_ATTEMPTS_MAX:
        lost = ContinuationCompletion(
            execution_id=execution.execution_id,
            unit_id=unit.unit_id,
            item_index=item.item_index,
            attempt=item.attempt,
            outputs=[],
            error_code="CONTINUATION_LOST",
            error_message="no continuation agent answered; is the role `continuation` running?",
            retryable=False,
        )
        return _failed(pipeline, lost, execution, unit, now_ms=now_ms)
    return emit(
        pipeline,
        execution,
        unit,
        item.item_index,
        interaction.completion,
        attempt=item.attempt,
        emissions=item.emissions,
        now_ms=now_ms,
    )
