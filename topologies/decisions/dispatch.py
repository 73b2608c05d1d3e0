"""Dispatch: make interactions and send their requests, one transaction for row, fact and request (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from schemas import facts, limits
from state.execution import ExecutionRecord, ExecutionStatus
from state.unit import UnitRecord
from topologies.decisions.decision import Append, Decision, Decisions, JudgeHeld, NoOp, Request
from topologies.decisions.ending import fail
from topologies.pipeline.items import SourceItem
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep


def open_unit(step: AwaitStep, execution: ExecutionRecord, unit_id: str, *, itemised: bool, now_ms: int) -> Decision:
    """Open the unit of an await step that was reached."""
    live = itemised and step.live
    return Append(
        facts.BoundaryUnitOpened(
            execution_id=execution.execution_id,
            at_ms=now_ms,
            unit_id=unit_id,
            step_id=step.step_id,
            step_number=step.index,
            itemised=itemised,
            live=live,
            release=execution.release,
            cardinality=step.cardinality,
        )
    )


def dispatch(
    step: AwaitStep,
    execution: ExecutionRecord,
    unit_id: str,
    item_index: int | None,
    item: SourceItem,
    *,
    held: bool,
    now_ms: int,
) -> Decisions:
    """Make one interaction and send its request; with an answer `held` for it no request is sent, the answer is judged next (policy 9)."""
    fact = facts.BoundaryInteractionDispatched(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit_id,
        item_index=item_index,
        attempt=1,
        idempotency_key=item.idempotency_key,
        deadline_ms=now_ms + step.timeout_ms,
        input_type=step.input.name,
        output_type=step.output.name,
        request=item.request,
        requested=not held,
        projector=step.projection.name if step.projection else None,
    )
    follows = JudgeHeld(unit_id, item_index) if held else Request(step, execution.tenant_id, fact)
    return [Append(fact), follows]


def dispatch_items(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    first_index: int,
    items: Sequence[SourceItem],
    held: Container[int],
    *,
    ended: bool,
    now_ms: int,
) -> Decisions:
    """Dispatch the next items of a stream; with the last of them, in the same transaction, record that the source ended.

    So a source that disappears after the last dispatch is never needed again (DESIGN 7). Items that were pulled before the execution ended,
    its stream failed or another owner dispatched them are nobody's.
    """
    if execution is None or execution.status is not ExecutionStatus.RUNNING:
        return [NoOp("session-outlived")]
    if unit is None or not unit.is_open or unit.dispatched != first_index:
        return [NoOp("session-outlived")]
    step = pipeline.await_step(unit.step_number)
    for index, item in enumerate(items, first_index):
        if len(item.request) > limits.PAYLOAD_BYTES_MAX:
            message = limits.payload_problem(f"item {index}", len(item.request))
            return fail(pipeline, execution, unit, code="REQUEST_TOO_LARGE", message=message, now_ms=now_ms)
    decisions: Decisions = []
    for index, item in enumerate(items, first_index):
        decisions += dispatch(step, execution, unit.unit_id, index, item, held=index in held, now_ms=now_ms)
    if ended:
        count = first_index + len(items)
        decisions.append(Append(facts.SourceEnded(execution.execution_id, now_ms, unit.unit_id, count)))
    return decisions
