"""Submission: accept an execution once (BEHAVIOUR 2.3, case 196)."""

from __future__ import annotations

from schemas import facts, limits
from schemas.envelopes import ExecutionOutcome, SubmitCommand
from state.execution import ExecutionRecord, digest_of, evolve
from topologies.decisions.decision import Append, DeadLetterRecord, Decisions, NoOp, TellOutcome
from topologies.decisions.ending import fail
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import Misfit

ACCEPTED = "ACCEPTED"
"""Status that the first submitter is told: from now on an answer for the execution is never unknown (CASES 4)."""


def submit(pipeline: Pipeline, command: SubmitCommand, execution: ExecutionRecord | None, *, now_ms: int) -> Decisions:
    """Start an execution, or tell a second submitter how the first one stands; an input that does not fit is dead-lettered.

    An object that does not fit is an execution all the same, which fails at once: it will be listed again, and must be known by then.
    """
    if execution is not None:
        known = ExecutionOutcome(
            command.reply_id or "",
            execution.execution_id,
            execution.status,
            duplicate=True,
            result=execution.result,
            outputs=execution.outputs,
            error_code=execution.error_code,
            error_message=execution.error_message,
        )
        same: Decisions = [] if command.reply_id else [NoOp("duplicate-submission")]
        told: Decisions = [TellOutcome(known)] if command.reply_id else []
        return [*told, *(same if _is_same(command, execution) else [_other_content(command)])]
    problem = _misfit(pipeline, command)
    if problem is not None and (command.origin != "object" or command.pipeline != pipeline.name):
        return [DeadLetterRecord("wrong-shape", problem)]
    submitted = _submitted(pipeline, command, now_ms)
    if problem is not None:
        failing = evolve(None, submitted)
        return [
            Append(submitted),
            *fail(pipeline, failing, None, code="WRONG_INPUT", message=problem, now_ms=now_ms),
        ]
    accepted = ExecutionOutcome(command.reply_id or "", command.execution_id, ACCEPTED)
    return [Append(submitted), *([TellOutcome(accepted)] if command.reply_id else [])]


def input_moved(execution: ExecutionRecord | None, moved_to: str, *, now_ms: int) -> Decisions:
    """Note where the object of an ended execution lies now; one that is forgotten keeps no place."""
    if execution is None or not execution.is_terminal or execution.forgotten:
        return [NoOp("execution-outlived")]
    if execution.moved_to == moved_to:
        return [NoOp("moved-before")]
    return [Append(facts.InputMoved(execution.execution_id, now_ms, moved_to))]


def _submitted(pipeline: Pipeline, command: SubmitCommand, now_ms: int) -> facts.RunSubmitted:
    return facts.RunSubmitted(
        execution_id=command.execution_id,
        at_ms=now_ms,
        tenant_id=command.tenant_id,
        pipeline=command.pipeline,
        submission_key=command.submission_key,
        input=command.input,
        source_name=command.source_name,
        source_size=command.source_size,
        source_sha256=command.source_sha256,
        release=pipeline.release,
        first_step_id=pipeline.step_id_at(0),
        origin=command.origin,
        source_path=command.source_path,
        source_stamp=command.source_stamp,
        reply_id=command.reply_id,
        door=command.door,
        root_execution_id=command.root_execution_id,
        parent_interaction_id=command.parent_interaction_id,
    )


def _is_same(command: SubmitCommand, execution: ExecutionRecord) -> bool:
    """Whether the second submission says what the first one said; True where that is not known any more."""
    return execution.input_digest in (b"", digest_of(command.input))


def _other_content(command: SubmitCommand) -> NoOp:
    """The key decides, so the second submission starts nothing; but somebody may have meant it to."""
    return NoOp(
        "duplicate-other-content",
        f"submission key {command.submission_key!r} was used before for another input: {command.execution_id} stays as it is, and nothing is "
        "started. What is meant as another submission needs another key",
    )


def _misfit(pipeline: Pipeline, command: SubmitCommand) -> str | None:
    """Why the input is none for this pipeline, or None when it fits."""
    if command.pipeline != pipeline.name:
        return f"it is for pipeline {command.pipeline}, this is {pipeline.name}"
    if len(command.input) > limits.PAYLOAD_BYTES_MAX:
        return limits.payload_problem("the input", len(command.input))
    try:
        pipeline.input_type.read(command.input)
    except Misfit as misfit:
        return str(misfit)
    return None
