"""Timeout: what follows when an interaction's deadline has passed without an admitted answer (BEHAVIOUR 5.8, policies 2 and 6).

The shell asks only once its consumed position has passed every answer that was there at the deadline.
"""

from __future__ import annotations

from schemas import facts
from state.execution import ExecutionRecord
from state.interaction import InteractionRecord, InteractionStatus
from state.unit import UnitRecord, UnitStatus
from topologies.decisions.continuation import after_completion
from topologies.decisions.decision import Append, Decisions, NoOp
from topologies.decisions.ending import fail
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import Skip, Value


def expire(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    interaction: InteractionRecord | None,
    *,
    live: bool,
    now_ms: int,
) -> Decisions:
    """Expire one interaction: fail the execution, or do what the step's `onTimeout` says. First terminal write wins.

    An answer that waits to be judged was there before the deadline; the timer is armed again if it is refused.
    """
    if execution is None or unit is None or not unit.is_open or interaction is None:
        return [NoOp("timer-outlived")]
    if interaction.status is not InteractionStatus.PENDING or interaction.deadline_ms > now_ms:
        return [NoOp("timer-outlived")]
    if interaction.held is not None:
        return [NoOp("held-answer-first")]
    step = pipeline.await_step(unit.step_number)
    resolution = (
        "skip" if isinstance(step.on_timeout, Skip) else "value" if isinstance(step.on_timeout, Value) else "fail"
    )
    timed_out = Append(
        facts.InteractionTimedOut(
            execution_id=unit.execution_id,
            at_ms=now_ms,
            unit_id=unit.unit_id,
            item_index=interaction.item_index,
            resolution=resolution,
        )
    )
    which = "" if interaction.item_index is None else f" of item {interaction.item_index}"
    message = f"no answer{which} for step {step.step_id} within {step.timeout_ms} ms"
    match step.on_timeout:
        case Skip():
            assert interaction.item_index is not None, "check refuses skip on a scalar await"
            skipped = facts.ContinuationSkipped(
                execution_id=unit.execution_id,
                at_ms=now_ms,
                unit_id=unit.unit_id,
                item_index=interaction.item_index,
                attempt=1,
                error_code="AWAIT_TIMEOUT",
                error_message=message,
            )
            return [timed_out, Append(skipped)]
        case Value() as value:
            admitted = _go_on_with(pipeline, execution, unit, interaction, value, live=live, now_ms=now_ms)
            return [timed_out, *admitted]
        case None:
            ended = fail(
                pipeline,
                execution,
                unit,
                code="AWAIT_TIMEOUT",
                message=message,
                now_ms=now_ms,
                outcome=UnitStatus.TIMED_OUT,
            )
            return [timed_out, *ended]


def _go_on_with(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    unit: UnitRecord,
    interaction: InteractionRecord,
    value: Value,
    *,
    live: bool,
    now_ms: int,
) -> Decisions:
    """Go on with the step's `onTimeout: {value: ...}` in place of an answer."""
    fact = facts.BoundaryCompletionAdmitted(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit.unit_id,
        item_index=interaction.item_index,
        completion=value.json,
        answer=None,
        actor=None,
        completed_at_ms=now_ms,
    )
    return [Append(fact), *after_completion(pipeline, execution, unit, fact, live=live, now_ms=now_ms)]
