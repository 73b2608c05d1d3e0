"""Submission: accept an execution once (BEHAVIOUR 2.3, case 196)."""

from __future__ import annotations

from schemas import facts, limits
from schemas.envelopes import ExecutionOutcome, SubmitCommand
from state.execution import ExecutionRecord
from topologies.decisions.decision import Append, DeadLetterRecord, Decisions, NoOp, TellOutcome
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import Misfit

ACCEPTED = "ACCEPTED"
"""Status that the first submitter is told: from now on an answer for the execution is never unknown (CASES 4)."""


def submit(pipeline: Pipeline, command: SubmitCommand, execution: ExecutionRecord | None, *, now_ms: int) -> Decisions:
    """Start an execution, or tell a second submitter how the first one stands; an input that does not fit is dead-lettered."""
    if execution is None and (problem := _misfit(pipeline, command)) is not None:
        return [DeadLetterRecord("wrong-shape", problem)]
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
        return [TellOutcome(known)] if command.reply_id else [NoOp("duplicate-submission")]
    accepted = ExecutionOutcome(command.reply_id or "", command.execution_id, ACCEPTED)
    return [
        Append(
            facts.RunSubmitted(
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
            ),
        ),
        *([TellOutcome(accepted)] if command.reply_id else []),
    ]


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
