"""Records of the user's topics, read as answers: enveloped, or bare with the request's headers echoed."""

from __future__ import annotations

import msgspec

from schemas import limits
from schemas.envelopes import (
    HEADER_INTERACTION_ID,
    HEADER_RESUME_TOKEN,
    AnswerEnvelope,
    ProviderCompletion,
    decode_answer,
)
from schemas.errors import PeerError, PoisonRecord
from schemas.identity import InteractionRef, parse_interaction_id
from streams.log.seam import Record


def read_answer(record: Record) -> tuple[ProviderCompletion, InteractionRef | None]:
    """An answer from its record: the envelope, or a bare business value that echoes the request's headers (SURFACE).

    Returns:
        The answer, and the interaction id that it names taken apart; None: what it names is no interaction id.

    Raises:
        PoisonRecord: null-value, too-large, not-json, missing-fields, wrong-member.
    """
    value = record.value
    if value is None:
        raise PoisonRecord("null-value", "a response record without a value answers nothing")
    if len(value) > limits.PAYLOAD_BYTES_MAX:
        raise PoisonRecord("too-large", limits.payload_problem("the answer", len(value)))
    envelope = _envelope(value)
    named = (envelope.interaction_id or envelope.correlation_id) if envelope is not None else None
    if envelope is not None and named and envelope.response_payload is not msgspec.UNSET:
        payload = bytes(envelope.response_payload)
        if payload == b"null":
            raise PoisonRecord("missing-fields", "responsePayload is null")
        token = envelope.resume_token or _echoed(record, HEADER_RESUME_TOKEN)
        return _completion(record, named, payload, token, envelope)
    named = _echoed(record, HEADER_INTERACTION_ID)
    if not named:
        raise PoisonRecord(
            "missing-fields",
            "an answer needs interactionId (or correlationId) and responsePayload, or the request's kawait-interaction-id header echoed",
        )
    if value == b"null":
        raise PoisonRecord("missing-fields", "the answer is null")
    return _completion(record, named, value, _echoed(record, HEADER_RESUME_TOKEN), AnswerEnvelope())


def _envelope(value: bytes) -> AnswerEnvelope | None:
    """The envelope, or None for JSON that is none.

    Raises:
        PoisonRecord: not JSON at all, or an envelope with a member of another type.
    """
    try:
        return decode_answer(value)
    except msgspec.ValidationError as error:
        if _is_envelope(value):
            raise PoisonRecord(
                "wrong-member", f"a member of the answer's envelope has the wrong type: {error}"
            ) from error
        return None
    except (msgspec.DecodeError, RecursionError) as error:
        raise PoisonRecord("not-json", str(error)) from error


def _is_envelope(value: bytes) -> bool:
    """Whether JSON that cannot be read as an envelope is meant as one, and is no business value."""
    try:
        members = _decode_members(value)
    except (msgspec.DecodeError, RecursionError):
        return False
    return "responsePayload" in members and ("interactionId" in members or "correlationId" in members)


_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _echoed(record: Record, wanted: str) -> str | None:
    """One of the request's headers, where the answer echoes it; the last one of a name counts."""
    echoed = [value for name, value in record.headers if name == wanted and value is not None]
    return echoed[-1].decode(errors="replace") if echoed else None


def _completion(
    record: Record, named: str, payload: bytes, token: str | None, envelope: AnswerEnvelope
) -> tuple[ProviderCompletion, InteractionRef | None]:
    try:
        ref = parse_interaction_id(named)
    except PeerError:
        ref = None
    completion = ProviderCompletion(
        execution_id=ref.execution_id if ref is not None else "",
        interaction_id=named,
        payload=payload,
        resume_token=token,
        idempotency_key=envelope.idempotency_key,
        actor=envelope.actor,
        tenant_id=envelope.tenant_id,
        origin_topic=record.topic,
        origin_partition=record.partition,
        origin_offset=record.offset,
        came_in_ms=record.timestamp_ms if record.appended else None,
    )
    return completion, ref
