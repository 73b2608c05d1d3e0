"""Ending an execution: the last facts, the dead letter and the reply, always together (DESIGN 7 'Finishing').

Any ending closes the open unit, and with it every interaction, timer and slot of it: one row and one fact, however many items.
"""

from __future__ import annotations

from schemas import facts
from schemas.envelopes import ExecutionOutcome
from schemas.limits import MESSAGE_CHARS_MAX
from state.execution import ExecutionRecord, ExecutionStatus
from state.unit import UnitRecord, UnitStatus
from topologies.decisions.decision import Append, CloseSession, DeadLetterExecution, Decisions, NoOp, TellOutcome
from topologies.pipeline.model import Pipeline


def succeed(
    execution: ExecutionRecord, unit: UnitRecord | None, *, result: bytes | None, outputs: list[str], now_ms: int
) -> Decisions:
    """End well: close the unit, then the terminal status, in one transaction with what was published."""
    items = unit if unit is not None and unit.itemised else None
    return [
        *_close(unit, UnitStatus.COMPLETED, now_ms),
        Append(facts.RunSucceeded(execution.execution_id, now_ms, result)),
        TellOutcome(
            ExecutionOutcome(
                "",
                execution.execution_id,
                ExecutionStatus.SUCCEEDED,
                result=result,
                outputs=outputs,
                succeeded=items.succeeded if items else None,
                skipped=items.skipped if items else None,
            )
        ),
    ]


def fail(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    unit: UnitRecord | None,
    *,
    code: str,
    message: str,
    now_ms: int,
    outcome: UnitStatus = UnitStatus.FAILED,
) -> Decisions:
    """End badly: close the unit, fail the execution, dead-letter it (policy 8)."""
    message = message[:MESSAGE_CHARS_MAX]
    items = unit if unit is not None and unit.itemised else None
    step = pipeline.steps[execution.step_index] if execution.step_index < len(pipeline.steps) else None
    waiting = unit is not None and unit.is_open and outcome is not UnitStatus.FAILED
    step_id = unit.step_id if waiting and unit is not None else step.step_id if step else None
    return [
        *_close(unit, outcome, now_ms),
        Append(facts.RunFailed(execution.execution_id, now_ms, code, message)),
        DeadLetterExecution(execution.execution_id, step_id, code, message, execution.input),
        TellOutcome(
            ExecutionOutcome(
                "",
                execution.execution_id,
                ExecutionStatus.FAILED,
                error_code=code,
                error_message=message,
                succeeded=items.succeeded if items else None,
                skipped=items.skipped if items else None,
            ),
        ),
    ]


def give_up(
    pipeline: Pipeline, execution: ExecutionRecord | None, unit: UnitRecord | None, detail: str, *, now_ms: int
) -> Decisions:
    """End an execution of which something can never be committed."""
    if execution is None or execution.is_terminal:
        return [NoOp("execution-outlived")]
    return fail(pipeline, execution, unit, code="NOT_COMMITTABLE", message=detail, now_ms=now_ms)


def cancel(execution: ExecutionRecord | None, unit: UnitRecord | None, *, reason: str, now_ms: int) -> Decisions:
    """End on an operator's word; an execution that ended already stays as it is."""
    if execution is None or execution.is_terminal:
        return []
    return [
        *_close(unit, UnitStatus.CANCELLED, now_ms),
        Append(facts.RunCancelled(execution.execution_id, now_ms, reason[:MESSAGE_CHARS_MAX])),
        TellOutcome(
            ExecutionOutcome(
                "", execution.execution_id, ExecutionStatus.CANCELLED, error_code="CANCELLED", error_message=reason
            )
        ),
    ]


def _close(unit: UnitRecord | None, outcome: UnitStatus, now_ms: int) -> Decisions:
    if unit is None or not unit.is_open:
        return []
    return [
        Append(facts.BoundaryUnitClosed(unit.execution_id, now_ms, unit.unit_id, outcome)),
        CloseSession(unit.unit_id),
    ]
