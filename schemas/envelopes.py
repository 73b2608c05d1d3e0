"""What travels on our own topics besides facts, and the JSON that the outside party reads and writes (SURFACE 'Topics and envelopes').

Own envelopes are msgspec structs, written as Avro (schemas.codec). The outside's JSON is read with the payload left raw: the payload is
validated once, by the step's own type.
"""

from __future__ import annotations

import msgspec

HEADER_INTERACTION_ID = "kawait-interaction-id"
HEADER_RESUME_TOKEN = "kawait-resume-token"  # noqa: S105 - a header's name
HEADER_RESPONSE_TOPIC = "kawait-response-topic"
HEADER_TRACEPARENT = "traceparent"
HEADER_PROBE = "kawait-probe"
"""Of an empty record on `replies` by which a worker learns the broker's time; for nobody else."""
HEADER_ERROR = "kawait-error"
HEADER_TOPIC = "kawait-topic"
HEADER_PARTITION = "kawait-partition"
HEADER_OFFSET = "kawait-offset"

DEFAULT_TENANT = "default"


# --- commands ----------------------------------------------------------------------------------------------------------------------


class SubmitCommand(msgspec.Struct, frozen=True, gc=False):
    """Start an execution; a known id is a duplicate and starts nothing."""

    execution_id: str
    tenant_id: str
    pipeline: str
    submission_key: str
    input: bytes
    source_name: str | None = None
    source_size: int | None = None
    source_sha256: str | None = None
    reply_id: str | None = None
    origin: str = "person"
    source_path: str | None = None
    source_stamp: str | None = None
    door: int | None = None
    root_execution_id: str | None = None
    parent_interaction_id: str | None = None


class CancelCommand(msgspec.Struct, frozen=True, gc=False):
    """End an execution."""

    execution_id: str
    reason: str
    reply_id: str | None = None
    actor: str | None = None
    door: int | None = None


class RedriveCommand(msgspec.Struct, frozen=True, gc=False):
    """Queue a dead-lettered execution again.

    Attributes:
        items: The items to do again.
        failed: All that failed, instead of naming them.
        publication: Only the publication.
        resend: Send again what is unanswered.
        letter_id: The dead letter that is answered by it.
    """

    execution_id: str
    reason: str
    reply_id: str | None = None
    actor: str | None = None
    door: int | None = None
    items: list[int] = []
    failed: bool = False
    publication: bool = False
    resend: bool = False
    letter_id: str | None = None


class NoteInputMoved(msgspec.Struct, frozen=True, gc=False):
    """Note where the input object of an ended execution was moved; empty `moved_to`: it was deleted."""

    execution_id: str
    moved_to: str


Command = SubmitCommand | CancelCommand | RedriveCommand | NoteInputMoved


# --- completions -------------------------------------------------------------------------------------------------------------------


class ProviderCompletion(msgspec.Struct, frozen=True, gc=False):
    """An answer of the outside party, re-keyed by ingress; judged by the core.

    Attributes:
        payload: The answer as it came, UTF-8 JSON.
        origin_topic, origin_partition, origin_offset: Where it came in.
        came_in_ms: When it came in, by the broker's stamp there; None: that topic has no such stamp, so no time is compared.
    """

    execution_id: str
    interaction_id: str
    payload: bytes
    resume_token: str | None = None
    idempotency_key: str | None = None
    actor: str | None = None
    tenant_id: str | None = None
    origin_topic: str = ""
    origin_partition: int = -1
    origin_offset: int = -1
    came_in_ms: int | None = None


class ContinuationCompletion(msgspec.Struct, frozen=True, gc=False):
    """The continuation agent's answer for one item: its outputs, or its error.

    Attributes:
        step_id: The step at which it failed, where that is known.
    """

    execution_id: str
    unit_id: str
    item_index: int
    attempt: int
    outputs: list[bytes]
    error_code: str | None = None
    error_message: str | None = None
    retryable: bool = True
    step_id: str | None = None


class Continuation(msgspec.Struct, frozen=True, gc=False):
    """A continuation record: asks any instance to run the suffix of one item once.

    Attributes:
        step_index: The await step; the suffix starts after it.
        stop_index: First step that is not run (next aggregate, or the number of steps).
        completion: The item's canonical completion.
        release: The execution's; another release's functions do not run it.
    """

    execution_id: str
    tenant_id: str
    pipeline: str
    unit_id: str
    item_index: int
    attempt: int
    step_index: int
    stop_index: int
    completion: bytes
    release: str = ""
    step_id: str = ""


# --- what people read --------------------------------------------------------------------------------------------------------------


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """An answer that was not admitted, for the step's owner to look at."""

    at_ms: int
    reason: str
    detail: str
    execution_id: str | None
    interaction_id: str | None
    step_id: str | None
    owner: str | None
    actor: str | None
    payload: bytes
    origin_topic: str
    origin_partition: int
    origin_offset: int
    tenant_id: str | None = None
    came_in_ms: int | None = None
    kept: bool = False
    """It waits on its row: a redrive admits it."""


class DeadLetter(msgspec.Struct, frozen=True, gc=False):
    """A dead execution (root only), an item that `onError` sent here, or a record that could not be decoded.

    Attributes:
        kind: `execution`, `item` or `record`.
        value: The record's value (or the execution's input), cut to `limits.DEAD_LETTER_BYTES_MAX`.
        value_length, value_sha256: Of the whole value.
    """

    at_ms: int
    kind: str
    reason: str
    detail: str
    execution_id: str | None
    step_id: str | None
    key: bytes | None
    value: bytes | None
    value_length: int
    value_sha256: str | None
    origin_topic: str
    origin_partition: int
    origin_offset: int
    letter_id: str | None = None
    item_index: int | None = None
    interaction_id: str | None = None
    tenant_id: str | None = None
    traceback: str | None = None
    """Of the author's function, cut."""


class ExecutionOutcome(msgspec.Struct, frozen=True, gc=False):
    """What a waiting door is told; `status` is an execution status, or ACCEPTED right after submission."""

    reply_id: str
    execution_id: str
    status: str
    duplicate: bool = False
    result: bytes | None = None
    outputs: list[str] = []
    error_code: str | None = None
    error_message: str | None = None
    succeeded: int | None = None
    skipped: int | None = None


ENVELOPES: tuple[type[msgspec.Struct], ...] = (
    SubmitCommand,
    CancelCommand,
    RedriveCommand,
    NoteInputMoved,
    ProviderCompletion,
    ContinuationCompletion,
    Continuation,
    Refusal,
    DeadLetter,
    ExecutionOutcome,
)


# --- the outside's JSON ------------------------------------------------------------------------------------------------------------


class RequestEnvelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The value of a request record."""

    tenant_id: str
    execution_id: str
    interaction_id: str
    correlation_id: str
    step_id: str
    item_index: int | None
    deadline_epoch_ms: int
    input_type: str
    output_type: str
    resume_token: str | None
    idempotency_key: str
    request_payload: msgspec.Raw


class AnswerEnvelope(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The value of a completion record as any producer writes it; unknown members are ignored."""

    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    idempotency_key: str | None = None
    actor: str | None = None
    tenant_id: str | None = None
    response_payload: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


encode_request = msgspec.json.Encoder().encode
"""`RequestEnvelope` to JSON."""

decode_answer = msgspec.json.Decoder(AnswerEnvelope).decode
"""JSON to `AnswerEnvelope`; raises msgspec.DecodeError or msgspec.ValidationError."""
