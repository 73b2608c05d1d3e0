"""Transports: how a request reaches the outside party, and where its answers come in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

PayloadFormat = Literal["json", "avro", "avro-registry"]


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTransport:
    """Requests and answers as records; topic names are complete, `{app}` is filled in."""

    kind: ClassVar[str] = "kafka"
    request_topic: str
    request_key: Literal["interactionId", "correlationId"]
    response_topic: str
    request_format: PayloadFormat
    response_format: PayloadFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class InteractionApiTransport:
    """No outward call: the interaction waits in the inbox for somebody to complete it."""

    kind: ClassVar[str] = "interaction-api"


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookTransport:
    """An HTTP call outward, an HTTP callback inward."""

    kind: ClassVar[str] = "webhook"
    url: str
    method: str
    headers: Mapping[str, str] = field(repr=False)  # may carry a credential
    timeout_ms: int
    callback_base_url: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SqsTransport:
    """Two standard queues."""

    kind: ClassVar[str] = "sqs"
    request_queue_url: str
    response_queue_url: str


Transport = KafkaTransport | InteractionApiTransport | WebhookTransport | SqsTransport
