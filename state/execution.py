"""Execution: one run of a pipeline (BEHAVIOUR 2.3). Record, transition table, `evolve`; pure.

Theory of operation. An execution walks the pipeline segment by segment: QUEUED until its segment is handed to the worker pool, RUNNING
while it runs (a live window runs inside RUNNING), WAITING_EXTERNAL while it is parked at `await_unit_id`, WAIT_RETRY between attempts.
`step_index` is the first step not yet done: the start of the current segment, or the await step where it is parked, or the number of
steps when only publication is left. With `input_unit_id` set, the segment's input is that unit's: it stays while a stream that the
segment makes opens the next unit, which takes `await_unit_id` over.

Records are arrays in the tables, the number of their format first: append fields only, always with a default.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum

import msgspec

from schemas import facts
from schemas.declaration import FORMAT
from schemas.facts import Fact
from schemas.identity import step_of
from state.transition import IllegalTransition, Transitions, next_status


class ExecutionStatus(StrEnum):
    """Where an execution stands."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    WAITING_EXTERNAL = "WAITING_EXTERNAL"
    WAIT_RETRY = "WAIT_RETRY"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_S = ExecutionStatus
TERMINAL = frozenset({_S.SUCCEEDED, _S.FAILED, _S.CANCELLED})
OPEN = frozenset(ExecutionStatus) - TERMINAL

TRANSITIONS: Transitions = {
    (None, facts.RunSubmitted): _S.QUEUED,
    (_S.QUEUED, facts.SegmentAttemptStarted): _S.RUNNING,
    (_S.RUNNING, facts.SegmentAttemptStarted): _S.RUNNING,  # a new owner runs the segment again
    (_S.WAIT_RETRY, facts.SegmentAttemptStarted): _S.RUNNING,
    (_S.QUEUED, facts.BoundaryUnitOpened): _S.QUEUED,
    (_S.RUNNING, facts.BoundaryUnitOpened): _S.RUNNING,
    (_S.RUNNING, facts.SegmentCompleted): _S.QUEUED,
    (_S.RUNNING, facts.SegmentAttemptFailed): _S.WAIT_RETRY,
    (_S.QUEUED, facts.SegmentSuspended): _S.WAITING_EXTERNAL,
    (_S.RUNNING, facts.SegmentSuspended): _S.WAITING_EXTERNAL,
    (_S.WAITING_EXTERNAL, facts.ContinuationSegmentCreated): _S.QUEUED,
    (_S.RUNNING, facts.ContinuationSegmentCreated): _S.QUEUED,  # a live window ran dry
    (_S.QUEUED, facts.TerminalPublicationPrepared): _S.RUNNING,
    (_S.RUNNING, facts.TerminalPublicationPrepared): _S.RUNNING,  # a new owner publishes again
    (_S.WAIT_RETRY, facts.TerminalPublicationPrepared): _S.RUNNING,
    (_S.RUNNING, facts.TerminalPublicationFailed): _S.WAIT_RETRY,
    (_S.RUNNING, facts.TerminalPublicationCompleted): _S.RUNNING,
    (_S.QUEUED, facts.RunSucceeded): _S.SUCCEEDED,
    (_S.RUNNING, facts.RunSucceeded): _S.SUCCEEDED,
    **{(status, facts.RunFailed): _S.FAILED for status in sorted(OPEN)},
    **{(status, facts.RunCancelled): _S.CANCELLED for status in sorted(OPEN)},
    **{(status, facts.BoundaryCompletionHeld): status for status in sorted(OPEN)},
    **{(status, facts.BoundaryInteractionDispatched): status for status in sorted(OPEN)},
    (_S.FAILED, facts.RunRedriven): _S.QUEUED,
    **{(status, facts.InputMoved): status for status in sorted(TERMINAL)},
    **{(status, facts.RunForgotten): status for status in sorted(TERMINAL)},
}


class ExecutionRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, tag=FORMAT):
    """What is true of an execution.

    Attributes:
        input: Input of the segment at `step_index`; with `many` a JSON array of payloads.
        await_unit_id: The unit it is parked at or runs a window for; the last one it passed until its segment is done.
        due_ms: When WAIT_RETRY ends, or when a prepared publication counts as lost.
        held: Answers held for steps not reached yet.
        result: The terminal output of a pipeline without an output.
        outputs: Names of published objects.
        input_unit_id: The unit whose answer, or whose items' outputs, are the segment's input; None: `input` is.
        release: The release of the application that decides it, to its end.
        step_id: Id of the step at `step_index`; empty behind the last one.
        origin: Who submitted it: `object`, `topic`, `checkpoint` or `person`.
        source_stamp: What told the object from its other states when it was submitted (size, times, inode).
        reply_id, door: Who waits for the outcome, and the partition of replies where.
        root_execution_id, parent_interaction_id: Of a child: the execution at the top, and the interaction that its end answers.
        redrives: How often it was queued again after its end.
        supplements: Publications that added what was left out of an earlier one.
        cursor: Slices of its output that were handed over.
        moved_to: Where its input object was moved after its end; empty: deleted.
        input_digest: Of the input as it was submitted; empty once it is forgotten.
        forgotten: Retention let it go: a stub that knows id, status and end, so that its object or record starts nothing again.
    """

    execution_id: str
    status: ExecutionStatus
    tenant_id: str
    pipeline: str
    submission_key: str
    submitted_at_ms: int
    updated_at_ms: int
    step_index: int
    attempt: int
    input: bytes
    many: bool = False
    await_unit_id: str | None = None
    due_ms: int | None = None
    source_name: str | None = None
    source_size: int | None = None
    source_sha256: str | None = None
    publication_id: str | None = None
    held: int = 0
    result: bytes | None = None
    outputs: list[str] = []
    error_code: str | None = None
    error_message: str | None = None
    input_unit_id: str | None = None
    release: str = ""
    step_id: str = ""
    origin: str = "person"
    source_path: str | None = None
    source_stamp: str | None = None
    reply_id: str | None = None
    door: int | None = None
    root_execution_id: str | None = None
    parent_interaction_id: str | None = None
    redrives: int = 0
    supplements: int = 0
    cursor: int = 0
    moved_to: str | None = None
    forgotten: bool = False
    input_digest: bytes = b""

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.status in TERMINAL


def evolve(record: ExecutionRecord | None, fact: Fact) -> ExecutionRecord:
    """The record after `fact`.

    Raises:
        IllegalTransition: `fact` is not possible now; `record` is unchanged.
    """
    status = ExecutionStatus(next_status(TRANSITIONS, record.status if record else None, fact))
    if isinstance(fact, facts.RunSubmitted):
        return _submitted(fact, status)
    if record is None:
        raise IllegalTransition(fact.execution_id)
    if isinstance(fact, facts.RunForgotten):
        return _stub(record)
    return msgspec.structs.replace(record, status=status, **{"updated_at_ms": fact.at_ms, **_changes(record, fact)})


def _submitted(fact: facts.RunSubmitted, status: ExecutionStatus) -> ExecutionRecord:
    return ExecutionRecord(
        execution_id=fact.execution_id,
        status=status,
        tenant_id=fact.tenant_id,
        pipeline=fact.pipeline,
        submission_key=fact.submission_key,
        submitted_at_ms=fact.at_ms,
        updated_at_ms=fact.at_ms,
        step_index=0,
        attempt=1,
        input=fact.input,
        source_name=fact.source_name,
        source_size=fact.source_size,
        source_sha256=fact.source_sha256,
        release=fact.release,
        step_id=fact.first_step_id,
        origin=fact.origin,
        source_path=fact.source_path,
        source_stamp=fact.source_stamp,
        reply_id=fact.reply_id,
        door=fact.door,
        root_execution_id=fact.root_execution_id,
        parent_interaction_id=fact.parent_interaction_id,
        input_digest=digest_of(fact.input),
    )


def digest_of(payload: bytes) -> bytes:
    """16 bytes that tell one canonical payload from another."""
    return hashlib.blake2b(payload, digest_size=16).digest()


def _stub(record: ExecutionRecord) -> ExecutionRecord:
    """What is left of an ended execution: that it ran, how it ended, and when."""
    return ExecutionRecord(
        execution_id=record.execution_id,
        status=record.status,
        tenant_id=record.tenant_id,
        pipeline="",
        submission_key="",
        submitted_at_ms=0,
        updated_at_ms=record.updated_at_ms,
        step_index=0,
        attempt=0,
        input=b"",
        origin=record.origin,
        forgotten=True,
    )


def _changes(record: ExecutionRecord, fact: Fact) -> dict[str, object]:
    match fact:
        case facts.SegmentAttemptStarted():
            return {"due_ms": None}
        case facts.SegmentCompleted():
            return {
                "step_index": fact.next_step,
                "step_id": fact.next_step_id,
                "input": fact.output,
                "many": fact.many,
                "attempt": 1,
                "await_unit_id": None,
                "input_unit_id": None,
            }
        case facts.SegmentAttemptFailed() | facts.TerminalPublicationFailed():
            return {
                "attempt": fact.attempt + 1,
                "due_ms": fact.retry_at_ms,
                "error_code": fact.error_code,
                "error_message": fact.error_message,
            }
        case facts.BoundaryUnitOpened():
            return {"await_unit_id": fact.unit_id}
        case facts.SegmentSuspended():
            return {"step_index": step_of(fact.unit_id)}
        case facts.ContinuationSegmentCreated():
            return {
                "step_index": fact.next_step,
                "step_id": fact.next_step_id,
                "await_unit_id": fact.unit_id,
                "attempt": 1,
                "input": b"",
                "many": False,
                "input_unit_id": fact.unit_id,
            }
        case facts.TerminalPublicationPrepared():
            return {"publication_id": fact.publication_id, "attempt": fact.attempt, "due_ms": fact.due_ms}
        case facts.TerminalPublicationCompleted():
            return {"outputs": fact.outputs, "due_ms": None}
        case facts.RunSucceeded():
            return {"result": fact.result, "due_ms": None, "error_code": None, "error_message": None}
        case facts.RunFailed():
            return {"error_code": fact.error_code, "error_message": fact.error_message, "due_ms": None}
        case facts.RunCancelled():
            return {"error_code": "CANCELLED", "error_message": fact.reason, "due_ms": None}
        case facts.RunRedriven():
            return {
                "attempt": fact.attempt,
                "error_code": None,
                "error_message": None,
                "redrives": record.redrives + 1,
            }
        case facts.InputMoved():
            return {"moved_to": fact.moved_to, "updated_at_ms": record.updated_at_ms}
        case facts.BoundaryCompletionHeld():
            return {"held": record.held + 1}
        case facts.BoundaryInteractionDispatched():
            return {"held": record.held - 1}
        case _:
            return {}
