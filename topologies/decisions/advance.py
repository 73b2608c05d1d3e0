"""Advance: from an execution's rows alone, what it does next (DESIGN 7; BEHAVIOUR 2.7, holes 1-3).

Theory of operation. `advance` is level-triggered: it looks at what is true and says what is missing, so it is right after every event,
after a restart, and twice in a row. The shell calls it for each execution that a batch touched, and for each open one it takes over,
until it says nothing more. `RunningWork` and `OpenSessions` tell it what this process is doing already; nothing durable depends on that.

    QUEUED, RUNNING   before the first request, where it may be in vain -> look ahead
                      at a run step   -> run the segment up to the next boundary; a stream into an await opens its unit and a session
                      at an await     -> open the unit, send the request, park
                      at the end      -> publish, then succeed
                      window ran dry  -> resume at the next aggregate or the end; stream ended without a session -> park
    WAITING_EXTERNAL  answer stored   -> resume; all items settled -> resume, or fail where some have failed
    WAIT_RETRY        due             -> as QUEUED
"""

from __future__ import annotations

from typing import Protocol

from schemas import facts, limits
from schemas.identity import unit_id as unit_id_of
from state.execution import ExecutionRecord, ExecutionStatus
from state.keys import interaction_key, unit_key
from state.segment_input import View, segment_input
from state.unit import UnitRecord, UnitStatus
from topologies.decisions import publication
from topologies.decisions.ahead import is_worth_a_look
from topologies.decisions.continuation import fail_settled
from topologies.decisions.decision import (
    Append,
    CloseSession,
    Decisions,
    LookAhead,
    OpenSession,
    RunSegment,
    StartSweep,
)
from topologies.decisions.dispatch import dispatch, open_unit
from topologies.decisions.ending import fail
from topologies.pipeline.items import SourceItem, idempotency_key
from topologies.pipeline.model import Pipeline
from topologies.pipeline.steps import AwaitStep


class RunningWork(Protocol):
    """What this process is running for an execution; lost with the process, and nothing depends on it."""

    def is_running(self, execution_id: str) -> bool:
        """A segment, a publication, a collection or a look ahead of it is on the worker pool."""

    def has_looked(self, execution_id: str) -> bool:
        """A look ahead of it has just ended."""


class OpenSessions(Protocol):
    """The sessions of this process; lost with the process, and nothing depends on them."""

    def has(self, unit_id: str) -> bool:
        """A session reads the source of this unit."""

    def parking_count(self, unit: UnitRecord) -> int | None:
        """Set when the session of a unit can do no more than park it: the items with a stored answer."""


def advance(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    view: View,
    work: RunningWork,
    sessions: OpenSessions,
    *,
    now_ms: int,
) -> Decisions:
    """What the execution does next; nothing when it waits for something that will wake it."""
    if execution.is_terminal or work.is_running(execution.execution_id):
        return []
    unit: UnitRecord | None = view.get(unit_key(execution.await_unit_id)) if execution.await_unit_id else None
    match execution.status:
        case ExecutionStatus.WAITING_EXTERNAL:
            assert unit is not None, "parked without a unit"
            return _resume(pipeline, execution, unit, now_ms=now_ms)
        case ExecutionStatus.WAIT_RETRY if (execution.due_ms or 0) > now_ms:
            return []
        case _:
            return _go_on(pipeline, execution, unit, view, work, sessions, now_ms=now_ms)


def _resume(pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord, *, now_ms: int) -> Decisions:
    """Resume a parked execution: only when every item is settled, and once (the status guards it)."""
    if not unit.is_open:
        return fail(
            pipeline,
            execution,
            unit,
            code="UNIT_CLOSED",
            message=f"unit {unit.unit_id} is {unit.status}",
            now_ms=now_ms,
        )
    if not unit.itemised:
        if unit.completed == 0:
            return []
        return [
            Append(facts.BoundaryUnitClosed(execution.execution_id, now_ms, unit.unit_id, UnitStatus.COMPLETED)),
            Append(_resume_at(pipeline, execution, unit, unit.step_number + 1, now_ms)),
        ]
    if not unit.dispatch_complete or unit.expected is None or unit.settled < unit.expected:
        return []
    return _all_settled(pipeline, execution, unit, now_ms=now_ms)


def _all_settled(pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord, *, now_ms: int) -> Decisions:
    """Every item has its outputs or was left out: the execution goes on at the next aggregate, or at the end with the unit still open.

    Where an item has failed, the execution fails instead, now that the others are stored.
    """
    if unit.failed:
        return fail_settled(pipeline, execution, unit, now_ms=now_ms)
    stop = pipeline.await_step(unit.step_number).suffix_stop
    resumed: Decisions = [Append(_resume_at(pipeline, execution, unit, stop, now_ms)), CloseSession(unit.unit_id)]
    if stop < len(pipeline.steps):
        resumed.insert(
            0, Append(facts.BoundaryUnitClosed(execution.execution_id, now_ms, unit.unit_id, UnitStatus.COMPLETED))
        )
    return resumed


def _resume_at(
    pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord, step_index: int, now_ms: int
) -> facts.ContinuationSegmentCreated:
    return facts.ContinuationSegmentCreated(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        unit_id=unit.unit_id,
        item_index=None,
        attempt=1,
        next_step=step_index,
        next_step_id=pipeline.step_id_at(step_index),
    )


def _go_on(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    unit: UnitRecord | None,
    view: View,
    work: RunningWork,
    sessions: OpenSessions,
    *,
    now_ms: int,
) -> Decisions:
    if execution.step_index == len(pipeline.steps):
        return publication.prepare(pipeline, execution, unit, now_ms=now_ms)
    if unit is not None and unit.itemised and unit.is_open and unit.step_number >= execution.step_index:
        return _dispatching(pipeline, execution, unit, sessions, now_ms=now_ms)
    boundary = pipeline.next_await(execution.step_index)
    if boundary is not None and _should_look(pipeline, execution, boundary, view, work):
        return [LookAhead(execution.execution_id, boundary)]
    if boundary is not None and pipeline.await_step(boundary).itemised:
        return _open_stream(pipeline, execution, boundary, view, now_ms=now_ms)
    if boundary == execution.step_index:
        return _ask(pipeline, execution, pipeline.await_step(boundary), view, now_ms=now_ms)
    stop = len(pipeline.steps) if boundary is None else boundary
    return [_start(execution, now_ms), RunSegment(execution.execution_id, execution.step_index, stop)]


def _should_look(pipeline: Pipeline, execution: ExecutionRecord, boundary: int, view: View, work: RunningWork) -> bool:
    """Whether the first request is next, and something may be known that makes it vain: looked for once, and again after a restart."""
    if not is_worth_a_look(pipeline, boundary) or work.has_looked(execution.execution_id):
        return False
    is_next = boundary == execution.step_index or pipeline.await_step(boundary).itemised
    return is_next and view.get(unit_key(unit_id_of(execution.execution_id, boundary))) is None


def _start(execution: ExecutionRecord, now_ms: int) -> Append:
    return Append(
        facts.SegmentAttemptStarted(
            execution.execution_id, now_ms, execution.step_index, execution.attempt, execution.step_id
        ),
    )


def _open_stream(
    pipeline: Pipeline, execution: ExecutionRecord, boundary: int, view: View, *, now_ms: int
) -> Decisions:
    """A stream flows into an await: open its unit once, and read the source by demand."""
    unit_id = unit_id_of(execution.execution_id, boundary)
    step = pipeline.await_step(boundary)
    known = view.get(unit_key(unit_id)) is not None
    opened: Decisions = [] if known else [open_unit(step, execution, unit_id, itemised=True, now_ms=now_ms)]
    return [_start(execution, now_ms), *opened, OpenSession(execution.execution_id, unit_id)]


def _dispatching(
    pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord, sessions: OpenSessions, *, now_ms: int
) -> Decisions:
    """A unit whose stream is being dispatched, live or not."""
    if unit.source_count is not None and unit.settled == unit.source_count:
        return _all_settled(pipeline, execution, unit, now_ms=now_ms)
    if unit.source_count is not None:
        completed = sessions.parking_count(unit) if unit.live else unit.completed
        if completed is not None:
            return park(execution, unit, completed=completed, now_ms=now_ms)
    if sessions.has(unit.unit_id):
        return []
    start = [_start(execution, now_ms)] if execution.status is not ExecutionStatus.RUNNING else []
    return [*start, OpenSession(execution.execution_id, unit.unit_id)]


def park(execution: ExecutionRecord, unit: UnitRecord, *, completed: int, now_ms: int) -> Decisions:
    """Close dispatch and park the execution in one transaction. Normal control flow: no error, no retry, no dead letter (DESIGN 7)."""
    assert unit.source_count is not None, "only a unit whose source ended is parked"
    return [
        Append(
            facts.BoundaryDispatchCompleted(
                execution_id=execution.execution_id,
                at_ms=now_ms,
                unit_id=unit.unit_id,
                expected=unit.source_count,
                completed=completed,
            ),
        ),
        Append(facts.SegmentSuspended(execution.execution_id, now_ms, unit.unit_id)),
        CloseSession(unit.unit_id),
        StartSweep(unit.unit_id),
    ]


def _ask(
    pipeline: Pipeline,
    execution: ExecutionRecord,
    step: AwaitStep,
    view: View,
    *,
    now_ms: int,
) -> Decisions:
    """A scalar await: open the unit, send the one request and park, all in one transaction (no gap for an early answer)."""
    request = segment_input(execution, view)
    if request is None or len(request) > limits.PAYLOAD_BYTES_MAX:
        which = f"the request of step {step.step_id}"
        message = f"{which} is missing" if request is None else limits.payload_problem(which, len(request))
        return fail(pipeline, execution, None, code="REQUEST_TOO_LARGE", message=message, now_ms=now_ms)
    unit_id = unit_id_of(execution.execution_id, step.index)
    key = idempotency_key(step, execution.execution_id, step.input.validate_json(request), None)
    held = execution.held > 0 and view.get(interaction_key(unit_id, None)) is not None
    return [
        open_unit(step, execution, unit_id, itemised=False, now_ms=now_ms),
        *dispatch(step, execution, unit_id, None, SourceItem(request, key), held=held, now_ms=now_ms),
        Append(
            facts.BoundaryDispatchCompleted(
                execution_id=execution.execution_id, at_ms=now_ms, unit_id=unit_id, expected=1, completed=0
            )
        ),
        Append(facts.SegmentSuspended(execution.execution_id, now_ms, unit_id)),
    ]
