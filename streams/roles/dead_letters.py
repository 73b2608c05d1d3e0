"""Refused answers and dead letters: what people read when something did not go well (SURFACE 'Topics and envelopes').

Both topics are for everybody to read, so the resume tokens that strangers put into keys and values are cut out: the interaction may still
be open. Length and sha256 are of the whole value, which stays where it came in.
"""

from __future__ import annotations

import hashlib

import msgspec

from connectors.resume_token import TOKEN_CHARS_MAX, without_tokens
from schemas import codec, limits
from schemas.envelopes import (
    HEADER_ERROR,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_TOPIC,
    DeadLetter,
    ProviderCompletion,
    Refusal,
)
from schemas.identity import execution_of
from schemas.names import Names
from state.interaction import InteractionRecord
from streams.engine.task import Outputs
from streams.log.seam import Record
from topologies.pipeline.steps import AwaitStep

DETAIL_CHARS_MAX = 2_000


def _readable(text: str) -> str:
    return without_tokens(text.encode()).decode()


def _headers(reason: str, topic: str, partition: int, offset: int) -> list[tuple[str, bytes]]:
    return [
        (HEADER_ERROR, reason.encode()),
        (HEADER_TOPIC, topic.encode()),
        (HEADER_PARTITION, str(partition).encode()),
        (HEADER_OFFSET, str(offset).encode()),
    ]


def write_refusal(
    outputs: Outputs,
    names: Names,
    completion: ProviderCompletion,
    step: AwaitStep | None,
    *,
    reason: str,
    detail: str,
    kept: bool = False,
    at_ms: int,
) -> None:
    """Write a refused answer with its payload, for the step's owner; `kept`: it stays on its row too."""
    interaction = _readable(completion.interaction_id)
    refusal = Refusal(
        at_ms=at_ms,
        reason=reason,
        detail=_readable(detail)[:DETAIL_CHARS_MAX],
        execution_id=completion.execution_id or None,
        interaction_id=interaction,
        step_id=step.step_id if step else None,
        owner=step.owner if step else None,
        actor=None if completion.actor is None else _readable(completion.actor),
        payload=without_tokens(completion.payload),
        origin_topic=completion.origin_topic,
        origin_partition=completion.origin_partition,
        origin_offset=completion.origin_offset,
        tenant_id=completion.tenant_id,
        came_in_ms=completion.came_in_ms,
        kept=kept,
    )
    headers = _headers(reason, completion.origin_topic, completion.origin_partition, completion.origin_offset)
    outputs.add(
        names.refusals,
        codec.encode(refusal),
        key=(completion.execution_id or interaction).encode(),
        headers=headers,
    )


def write_record(outputs: Outputs, names: Names, record: Record, *, reason: str, detail: str, at_ms: int) -> None:
    """Write a record that cannot be used, cut to what a person can look at, with length and sha256 of the whole."""
    value = record.value
    key = None if record.key is None else without_tokens(record.key)
    kept = (
        None if value is None else value[: limits.DEAD_LETTER_BYTES_MAX + TOKEN_CHARS_MAX]
    )  # a token cut in two is found too
    letter = DeadLetter(
        at_ms=at_ms,
        kind="record",
        reason=reason,
        detail=_readable(detail)[:DETAIL_CHARS_MAX],
        execution_id=None,
        step_id=None,
        key=key,
        value=None if kept is None else without_tokens(kept)[: limits.DEAD_LETTER_BYTES_MAX],
        value_length=len(value) if value is not None else 0,
        value_sha256=hashlib.sha256(value).hexdigest() if value is not None else None,
        origin_topic=record.topic,
        origin_partition=record.partition,
        origin_offset=record.offset,
    )
    headers = _headers(reason, record.topic, record.partition, record.offset)
    outputs.add(names.dlq, codec.encode(letter), key=key, headers=headers)


def write_execution(
    outputs: Outputs,
    names: Names,
    *,
    execution_id: str,
    step_id: str | None,
    reason: str,
    detail: str,
    value: bytes,
    at_ms: int,
) -> None:
    """Write a dead execution, with the input it died on."""
    letter = DeadLetter(
        at_ms=at_ms,
        kind="execution",
        reason=reason,
        detail=detail[:DETAIL_CHARS_MAX],
        execution_id=execution_id,
        step_id=step_id,
        key=execution_id.encode(),
        value=value[: limits.DEAD_LETTER_BYTES_MAX],
        value_length=len(value),
        value_sha256=hashlib.sha256(value).hexdigest(),
        origin_topic="",
        origin_partition=-1,
        origin_offset=-1,
    )
    headers = _headers(reason, names.commands, -1, -1)
    outputs.add(names.dlq, codec.encode(letter), key=execution_id.encode(), headers=headers)


def write_item(
    outputs: Outputs,
    names: Names,
    row: InteractionRecord,
    *,
    tenant_id: str,
    step_id: str,
    letter_id: str,
    reason: str,
    detail: str,
    at_ms: int,
) -> None:
    """Write an item that was left out: what was asked, what was answered, and the completion that its suffix failed on."""
    execution_id = execution_of(row.unit_id)
    value = without_tokens(_asked_and_answered(row))
    letter = DeadLetter(
        at_ms=at_ms,
        kind="item",
        reason=reason,
        detail=_readable(detail)[:DETAIL_CHARS_MAX],
        execution_id=execution_id,
        step_id=step_id,
        key=execution_id.encode(),
        value=value[: limits.DEAD_LETTER_BYTES_MAX],
        value_length=len(value),
        value_sha256=hashlib.sha256(value).hexdigest(),
        origin_topic="",
        origin_partition=-1,
        origin_offset=-1,
        letter_id=letter_id,
        item_index=row.item_index,
        interaction_id=row.interaction_id,
        tenant_id=tenant_id,
    )
    headers = _headers(reason, names.completions, -1, -1)
    outputs.add(names.dlq, codec.encode(letter), key=execution_id.encode(), headers=headers)


def _asked_and_answered(row: InteractionRecord) -> bytes:
    """JSON: the request, the answer where a projector made the completion of it, the completion."""
    parts = {"request": row.request, "answer": row.answer, "completion": row.completion}
    return msgspec.json.encode({name: msgspec.Raw(part) for name, part in parts.items() if part is not None})
