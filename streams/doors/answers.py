"""Answering a request over any log: the completion is written where the step expects it, and judged there."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from schemas.envelopes import ProviderCompletion
from schemas.errors import UsageError
from schemas.identity import parse_interaction_id
from streams.doors.outcomes import STORE_TIMEOUT_S
from streams.doors.submissions import send
from streams.log.seam import Log
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import Misfit
from topologies.pipeline.steps import AwaitStep
from topologies.pipeline.transports import KafkaTransport


@dataclass(frozen=True)
class AnswerCommand:
    """An answer on its way in. `payload` is UTF-8 JSON."""

    interaction_id: str
    payload: bytes
    token: str | None = field(default=None, repr=False)
    actor: str | None = None
    idempotency_key: str | None = None


def send_answer(pipeline: Pipeline, log: Log, answer: AnswerCommand, *, timeout_s: float = STORE_TIMEOUT_S) -> None:
    """Write an answer: on the step's response topic where it has one, else straight to where admission reads.

    Raises:
        UsageError, LogUnavailable: see `reply`.
    """
    ref = parse_interaction_id(answer.interaction_id)
    step = pipeline.steps[ref.step_index] if ref.step_index < len(pipeline.steps) else None
    if not isinstance(step, AwaitStep):
        raise UsageError(
            f"{answer.interaction_id} names step {ref.step_index}, which is no await step of {pipeline.name}"
        )
    try:
        step.answer_type.read(answer.payload)
    except Misfit as misfit:
        raise UsageError(f"the answer is {misfit}") from misfit
    producer = log.plain_producer()
    try:
        if isinstance(step.transport, KafkaTransport):
            value = _envelope(answer)
            producer.send(step.transport.response_topic, value, key=answer.interaction_id.encode(), timeout_s=timeout_s)
        else:
            completion = ProviderCompletion(
                execution_id=ref.execution_id,
                interaction_id=answer.interaction_id,
                payload=answer.payload,
                resume_token=answer.token,
                idempotency_key=answer.idempotency_key,
                actor=answer.actor,
            )
            send(pipeline, producer, completion, timeout_s=timeout_s)
    finally:
        producer.close()


def _envelope(answer: AnswerCommand) -> bytes:
    members = {
        "interactionId": answer.interaction_id,
        "resumeToken": answer.token,
        "idempotencyKey": answer.idempotency_key,
        "actor": answer.actor,
        "responsePayload": msgspec.Raw(answer.payload),
    }
    return msgspec.json.encode({name: value for name, value in members.items() if value is not None})
