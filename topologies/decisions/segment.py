"""Segment: what follows when the steps between two boundaries ran to their end, or failed (BEHAVIOUR 2.7).

The twin of `topologies.decisions.publication`: the shell runs the work and says how it ended; whether that still matters, and whether there
is another attempt, is decided here from the rows.
"""

from __future__ import annotations

from schemas import facts
from schemas.limits import MESSAGE_CHARS_MAX
from state.execution import ExecutionRecord, ExecutionStatus
from state.unit import UnitRecord
from topologies.decisions.decision import Append, Decisions, NoOp
from topologies.decisions.ending import fail
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import RunStep


def segment_ended(
    pipeline: Pipeline, execution: ExecutionRecord | None, *, stop: int, output: bytes, many: bool, now_ms: int
) -> Decisions:
    """Keep what the segment made; the execution stands before step `stop` from now on."""
    if execution is None or execution.status is not ExecutionStatus.RUNNING:
        return [NoOp("segment-outlived")]
    completed = facts.SegmentCompleted(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        next_step=stop,
        output=output,
        many=many,
        next_step_id=pipeline.step_id_at(stop),
    )
    return [Append(completed)]


def segment_failed(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    *,
    code: str,
    message: str,
    retryable: bool,
    now_ms: int,
) -> Decisions:
    """Another attempt when the step's `retry` has one left, else the end of the execution.

    A result that cannot be gathered from what is stored is never tried again: the rows will not change.
    """
    if execution is None or execution.is_terminal:
        return [NoOp("segment-outlived")]
    if execution.step_index == len(pipeline.steps):
        return fail(pipeline, execution, unit, code=code, message=message, now_ms=now_ms)
    if execution.status is not ExecutionStatus.RUNNING:
        return [NoOp("segment-outlived")]
    step = pipeline.steps[execution.step_index]
    retry = step.retry if isinstance(step, RunStep) else None
    if not retryable or retry is None or execution.attempt >= retry.attempts:
        return fail(pipeline, execution, unit, code=code, message=message, now_ms=now_ms)
    failed = facts.SegmentAttemptFailed(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        step_index=execution.step_index,
        attempt=execution.attempt,
        error_code=code,
        error_message=message[:MESSAGE_CHARS_MAX],
        retry_at_ms=now_ms + retry.delay_ms(execution.attempt),
    )
    return [Append(failed)]
