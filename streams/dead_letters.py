"""Refused answers and dead letters: what people read when something did not go well (SURFACE 'Topics and envelopes')."""

from __future__ import annotations

import hashlib

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
from streams.log import Record
from streams.loop import Outputs
from streams.names import Names
from topologies.pipeline import AwaitStep

DETAIL_CHARS_MAX = 2_000


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
    at_ms: int,
) -> None:
    """Write a refused answer with its payload, for the step's owner."""
    refusal = Refusal(
        at_ms,
        reason,
        detail[:DETAIL_CHARS_MAX],
        completion.execution_id or None,
        completion.interaction_id,
        step.step_id if step else None,
        step.owner if step else None,
        completion.actor,
        completion.payload,
        completion.origin_topic,
        completion.origin_partition,
        completion.origin_offset,
    )
    headers = _headers(reason, completion.origin_topic, completion.origin_partition, completion.origin_offset)
    outputs.add(
        names.refusals,
        codec.encode(refusal),
        key=(completion.execution_id or completion.interaction_id).encode(),
        headers=headers,
    )


def write_record(outputs: Outputs, names: Names, record: Record, *, reason: str, detail: str, at_ms: int) -> None:
    """Write a record that cannot be used, cut to what a person can look at, with length and sha256 of the whole."""
    value = record.value
    letter = DeadLetter(
        at_ms,
        "record",
        reason,
        detail[:DETAIL_CHARS_MAX],
        None,
        None,
        record.key,
        value[: limits.DEAD_LETTER_BYTES_MAX] if value is not None else None,
        len(value) if value is not None else 0,
        hashlib.sha256(value).hexdigest() if value is not None else None,
        record.topic,
        record.partition,
        record.offset,
    )
    headers = _headers(reason, record.topic, record.partition, record.offset)
    outputs.add(names.dlq, codec.encode(letter), key=record.key, headers=headers)


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
    """Write a dead execution; it can be redriven under the same id."""
    letter = DeadLetter(
        at_ms,
        "execution",
        reason,
        detail[:DETAIL_CHARS_MAX],
        execution_id,
        step_id,
        execution_id.encode(),
        value[: limits.DEAD_LETTER_BYTES_MAX],
        len(value),
        hashlib.sha256(value).hexdigest(),
        "",
        -1,
        -1,
    )
    headers = _headers(reason, names.commands, -1, -1)
    outputs.add(names.dlq, codec.encode(letter), key=execution_id.encode(), headers=headers)
