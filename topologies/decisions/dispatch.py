"""Dispatch: make interactions and send their requests, one transaction for row, fact and request (DESIGN 7)."""

from __future__ import annotations

from collections.abc import Container, Sequence

from schemas import facts
from state.execution import ExecutionRecord
from state.unit import UnitRecord
from topologies.decisions.decision import Append, Decision, Decisions, NoOp, Request
from topologies.pipeline.items import SourceItem
from topologies.pipeline.steps import AwaitStep


def open_unit(step: AwaitStep, execution: ExecutionRecord, unit_id: str, *, itemised: bool, now_ms: int) -> Decision:
    """Open the unit of an await step that was reached."""
    live = itemised and step.live
    return Append(
        facts.BoundaryUnitOpened(execution.execution_id, now_ms, unit_id, step.step_id, step.index, itemised, live)
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
        execution.execution_id,
        now_ms,
        unit_id,
        item_index,
        1,
        item.idempotency_key,
        now_ms + step.timeout_ms,
        step.input.name,
        step.output.name,
        item.request,
        not held,
        step.projection.name if step.projection else None,
    )
    return [Append(fact)] if held else [Append(fact), Request(step, execution.tenant_id, fact)]


def dispatch_items(
    step: AwaitStep,
    execution: ExecutionRecord,
    unit: UnitRecord,
    first_index: int,
    items: Sequence[SourceItem],
    held: Container[int],
    *,
    ended: bool,
    now_ms: int,
) -> Decisions:
    """Dispatch the next items of a stream; with the last of them, in the same transaction, record that the source ended.

    So a source that disappears after the last dispatch is never needed again (DESIGN 7).
    """
    if not unit.is_open:
        return [NoOp("unit-closed")]  # pulled before the execution ended
    decisions: Decisions = []
    for index, item in enumerate(items, first_index):
        decisions += dispatch(step, execution, unit.unit_id, index, item, held=index in held, now_ms=now_ms)
    if ended:
        count = first_index + len(items)
        decisions.append(Append(facts.SourceEnded(execution.execution_id, now_ms, unit.unit_id, count)))
    return decisions
