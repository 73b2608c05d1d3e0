"""Submitting: a door's half of starting an execution; the id is derived, so a repeat is the same execution (DESIGN 4)."""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import Any

import msgspec

from connectors.objects.listing import ObjectIdentity, identify, submission_key
from schemas import codec, limits
from schemas.envelopes import DEFAULT_TENANT, Command, ProviderCompletion, SubmitCommand
from schemas.errors import UsageError
from schemas.identity import execution_id
from schemas.names import Names
from streams.log.seam import PlainProducer
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import Misfit
from topologies.pipeline.values import no_number, normal_form


def command_for_object(
    pipeline: Pipeline, identity: ObjectIdentity, *, key: str | None = None, tenant: str = DEFAULT_TENANT
) -> SubmitCommand:
    """The submission of one object: its place and content make the key, so a re-listed object is a duplicate (BEHAVIOUR 4.12).

    Another `key` is another execution of the same object: what an operator wants after a failure.

    Raises:
        UsageError: the object is not of the pipeline's input type.
    """
    payload, _ = _canonical(pipeline, _described(identity), f"object {identity.path}")
    return _object_command(pipeline, identity, payload, submission_key(identity) if key is None else key, tenant)


def command_for_listed(pipeline: Pipeline, identity: ObjectIdentity, *, reply_id: str) -> SubmitCommand:
    """The submission of an object that nobody hands in: one that is not of the input type becomes an execution that fails."""
    payload = _described(identity)
    with contextlib.suppress(UsageError):
        payload, _ = _canonical(pipeline, payload, "the object")
    command = _object_command(pipeline, identity, payload, submission_key(identity), DEFAULT_TENANT)
    return msgspec.structs.replace(command, reply_id=reply_id)


def id_of_listed(pipeline: Pipeline, identity: ObjectIdentity) -> str:
    """The execution of an object that is listed."""
    return execution_id(DEFAULT_TENANT, pipeline.name, submission_key(identity))


def _described(identity: ObjectIdentity) -> bytes:
    """What the first step gets."""
    return msgspec.json.encode(
        {"path": identity.path, "name": identity.name, "size": identity.size, "sha256": identity.sha256}
    )


def _object_command(
    pipeline: Pipeline, identity: ObjectIdentity, payload: bytes, key: str, tenant: str
) -> SubmitCommand:
    return SubmitCommand(
        execution_id=execution_id(tenant, pipeline.name, key),
        tenant_id=tenant,
        pipeline=pipeline.name,
        submission_key=key,
        input=payload,
        source_name=identity.name,
        source_size=identity.size,
        source_sha256=identity.sha256,
        origin="object",
        source_path=identity.path,
        source_stamp=identity.look.stamp if identity.look is not None else None,
    )


def command_for_payload(
    pipeline: Pipeline, value: bytes, *, key: str | None = None, tenant: str = DEFAULT_TENANT
) -> SubmitCommand:
    """The submission of a payload; without a key its content is the key, however it is written.

    Raises:
        UsageError: the payload is not of the pipeline's input type.
    """
    payload, meaning = _canonical(pipeline, value, "the payload")
    submission = key if key is not None else f"sha256:{hashlib.sha256(meaning).hexdigest()}"
    return SubmitCommand(
        execution_id=execution_id(tenant, pipeline.name, submission),
        tenant_id=tenant,
        pipeline=pipeline.name,
        submission_key=submission,
        input=payload,
    )


def _canonical(pipeline: Pipeline, value: bytes, what: str) -> tuple[bytes, bytes]:
    """A payload as it is stored, and the text that all payloads have which mean the same."""
    try:
        read = pipeline.input_type.read(value)
        payload = pipeline.input_type.to_json(read)
    except Misfit as misfit:
        raise UsageError(f"{what} is {misfit}") from misfit
    if len(payload) > limits.PAYLOAD_BYTES_MAX:
        raise UsageError(limits.payload_problem(what, len(payload)))
    return payload, normal_form(read)


def send(
    pipeline: Pipeline, producer: PlainProducer, message: Command | ProviderCompletion, *, timeout_s: float
) -> None:
    """Write a command or an answer where its execution lives.

    Raises:
        LogUnavailable: not stored within `timeout_s`.
    """
    topic, key, partition = Names.of(pipeline.app).home_of(message, pipeline.partitions)
    producer.send(topic, codec.encode(message), key=key, partition=partition, timeout_s=timeout_s)


def command_of(
    pipeline: Pipeline,
    value: Any = None,
    *,
    file: str | Path | None = None,
    key: str | None = None,
    tenant: str = DEFAULT_TENANT,
) -> SubmitCommand:
    """The submission of a file or a payload.

    Raises:
        UsageError: both or none are given, the file cannot be read, or the value is not of the input type.
    """
    if file is None:
        return command_for_payload(pipeline, encode_value(value), key=key, tenant=tenant)
    if value is not None:
        raise UsageError("give either a file or a payload, not both")
    try:
        identity = identify(file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from error
    return command_for_object(pipeline, identity, key=key, tenant=tenant)


def encode_value(value: Any) -> bytes:
    """A value as JSON: bytes are taken as JSON already.

    Raises:
        UsageError: JSON cannot say it.
    """
    if isinstance(value, bytes):
        return value
    try:
        if hasattr(value, "model_dump_json"):
            written = str(value.model_dump_json(by_alias=True, round_trip=True)).encode()
        else:
            written = msgspec.json.encode(value)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the value cannot be written as JSON: {error}") from error
    if b"null" in written or b"NaN" in written or b"Infinity" in written:  # how what is no number is written
        where = no_number(value)
        if where is not None:
            raise UsageError(f"{where} is no finite number, which JSON cannot say")
    return written
