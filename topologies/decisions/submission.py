"""Submission: accept an execution once (BEHAVIOUR 2.3, case 196)."""

from __future__ import annotations

from schemas import facts
from schemas.envelopes import Reply, SubmitCommand
from state.execution import ExecutionRecord
from topologies.decisions.decision import Append, Decisions, NoOp, SendReply

ACCEPTED = "ACCEPTED"
"""Status that the first submitter is told: from now on an answer for the execution is never unknown (CASES 4)."""


def submit(command: SubmitCommand, execution: ExecutionRecord | None, *, now_ms: int) -> Decisions:
    """Start an execution, or tell a second submitter how the first one stands."""
    if execution is not None:
        known = Reply(
            command.reply_id or "",
            execution.execution_id,
            execution.status,
            duplicate=True,
            result=execution.result,
            outputs=execution.outputs,
            error_code=execution.error_code,
            error_message=execution.error_message,
        )
        return [SendReply(known)] if command.reply_id else [NoOp("duplicate-submission")]
    accepted = Reply(command.reply_id or "", command.execution_id, ACCEPTED)
    return [
        Append(
            facts.RunSubmitted(
                command.execution_id,
                now_ms,
                command.tenant_id,
                command.pipeline,
                command.submission_key,
                command.input,
                command.source_name,
                command.source_size,
                command.source_sha256,
            ),
        ),
        *([SendReply(accepted)] if command.reply_id else []),
    ]
