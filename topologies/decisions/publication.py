"""Publication: the terminal output is where it belongs before the execution is SUCCEEDED (DESIGN 7 'Finishing', BEHAVIOUR 2.6).

Topic outputs are written in the deciding transaction. An object is an effect: prepared fact -> effect -> completed fact with the
terminal status and the closed unit in one transaction. Prepared but not completed: the effect runs again under its stable id.
"""

from __future__ import annotations

from schemas import facts, limits
from schemas.limits import MESSAGE_CHARS_MAX
from state.execution import ExecutionRecord, ExecutionStatus
from state.unit import UnitRecord
from topologies.decisions.decision import Append, Collect, Decisions, NoOp, Publish, WriteOutput
from topologies.decisions.ending import fail, succeed
from topologies.pipeline.ends import ObjectOutput, TopicOutput
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payload_list import split_payloads


def publication_id(execution_id: str) -> str:
    """The stable id of an execution's object publication (BEHAVIOUR 2.5)."""
    return f"{execution_id}:terminal-output:object-publish"


def prepare(pipeline: Pipeline, execution: ExecutionRecord, unit: UnitRecord | None, *, now_ms: int) -> Decisions:
    """What is left when every step is done."""
    itemised = unit is not None and unit.itemised
    match pipeline.output:
        case ObjectOutput():
            prepared = facts.TerminalPublicationPrepared(
                execution_id=execution.execution_id,
                at_ms=now_ms,
                publication_id=publication_id(execution.execution_id),
                attempt=execution.attempt,
                due_ms=now_ms + limits.CALL_TIMEOUT_DEFAULT_MS,
            )
            return [Append(prepared), Publish(execution.execution_id, prepared.publication_id, execution.attempt)]
        case TopicOutput() if itemised:  # each item was written as it finished
            return succeed(execution, unit, result=None, outputs=[], now_ms=now_ms)
        case _:
            return [Collect(execution.execution_id)]


def collected(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    result: bytes,
    *,
    many: bool,
    now_ms: int,
) -> Decisions:
    """The result was gathered from committed rows: write it to the output topic, or keep it on the execution."""
    if execution is None or execution.is_terminal:
        return [NoOp("collection-outlived")]
    if isinstance(pipeline.output, TopicOutput):
        payloads = split_payloads(result) if many else [result]
        written: Decisions = [WriteOutput(execution.execution_id, payload) for payload in payloads]
        return [*written, *succeed(execution, unit, result=None, outputs=[], now_ms=now_ms)]
    return succeed(execution, unit, result=result, outputs=[], now_ms=now_ms)


def published(
    execution: ExecutionRecord | None, unit: UnitRecord | None, outputs: list[str], *, now_ms: int
) -> Decisions:
    """The effect is done: completed fact, closed unit and terminal status in one transaction."""
    if execution is None or execution.status is not ExecutionStatus.RUNNING or execution.publication_id is None:
        return [NoOp("publication-outlived")]
    done = facts.TerminalPublicationCompleted(execution.execution_id, now_ms, execution.publication_id, outputs)
    return [Append(done), *succeed(execution, unit, result=None, outputs=outputs, now_ms=now_ms)]


def publication_failed(
    pipeline: Pipeline,
    execution: ExecutionRecord | None,
    unit: UnitRecord | None,
    *,
    code: str,
    message: str,
    retryable: bool,
    now_ms: int,
) -> Decisions:
    """The effect failed: try again later under the same id, or dead-letter."""
    if execution is None or execution.status is not ExecutionStatus.RUNNING or execution.publication_id is None:
        return [NoOp("publication-outlived")]
    if not retryable or execution.attempt >= limits.PUBLICATION_ATTEMPTS_MAX:
        return fail(pipeline, execution, unit, code=code, message=message, now_ms=now_ms)
    delay_ms = min(limits.RETRY_BASE_DEFAULT_MS * 2**execution.attempt, limits.RETRY_CAP_DEFAULT_MS)
    failed = facts.TerminalPublicationFailed(
        execution_id=execution.execution_id,
        at_ms=now_ms,
        publication_id=execution.publication_id,
        attempt=execution.attempt,
        error_code=code,
        error_message=message[:MESSAGE_CHARS_MAX],
        retry_at_ms=now_ms + delay_ms,
    )
    return [Append(failed)]
