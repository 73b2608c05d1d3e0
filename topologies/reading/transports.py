"""`await.transport` of pipeline.yaml: one reader for each type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from topologies.pipeline.transports import (
    InteractionApiTransport,
    KafkaTransport,
    PayloadFormat,
    SqsTransport,
    Transport,
    WebhookTransport,
)
from topologies.reading.advice import KAFKA_HINTS, TRANSPORT_ADVICE
from topologies.reading.binding import Binding, not_yet
from topologies.reading.fields import Fields

RequestKey = Literal["interactionId", "correlationId"]
REQUEST_KEYS: Final[tuple[RequestKey, ...]] = ("interactionId", "correlationId")
FORMATS: Final[tuple[PayloadFormat, ...]] = ("json", "avro", "avro-registry")
WEBHOOK_TIMEOUT_DEFAULT_MS = 30_000


def read_transport(inside: Fields, binding: Binding) -> Transport | None:
    """The transport; None when it is missing or faulty."""
    below = inside.below("transport", required=TRANSPORT_ADVICE)
    if below is None:
        return None
    readers: dict[str, Callable[[Fields, Binding], Transport | None]] = {
        "kafka": _kafka_transport,
        "interaction-api": _interaction_api_transport,
        "webhook": _webhook_transport,
        "sqs": _sqs_transport,
    }
    kind = below.choice("type", readers, required=f"write one of: {', '.join(readers)}")
    if kind is None:
        return None
    not_yet(f"transport {kind}", below, "type")
    transport = readers[kind](below, binding)
    below.finish(KAFKA_HINTS)
    return transport


def _kafka_transport(below: Fields, binding: Binding) -> Transport | None:
    request = below.below("request", required='write request: {topic: "{app}.requests"}')
    response = below.below("response", required='write response: {topic: "{app}.results"}')
    request_topic = binding.topic(request, "topic") if request else None
    response_topic = binding.topic(response, "topic") if response else None
    request_key: RequestKey = (request.choice("key", REQUEST_KEYS) if request else None) or "interactionId"
    request_format, response_format = _format(request), _format(response)
    for end in (request, response):
        if end is not None:
            end.finish()
    if request_topic is None or response_topic is None or request is None or response is None:
        return None
    if request_topic == response_topic:
        response.note("topic", "requests and answers share a topic", "name a topic of its own for the answers")
    return KafkaTransport(
        request_topic=request_topic,
        request_key=request_key,
        response_topic=response_topic,
        request_format=request_format,
        response_format=response_format,
    )


def _format(end: Fields | None) -> PayloadFormat:
    if end is None:
        return "json"
    name: PayloadFormat = end.choice("format", FORMATS) or "json"
    if name != "json":
        not_yet("avro", end, "format")
    return name


def _interaction_api_transport(_below: Fields, _binding: Binding) -> Transport:
    return InteractionApiTransport()


def _webhook_transport(below: Fields, _binding: Binding) -> Transport | None:
    request = below.below("request", required="write request: {url: https://...}")
    url = request.text("url", required="write the address that takes the request") if request else None
    if request is not None:
        request.finish()
    headers = below.below("headers")
    callback = below.below("callback")
    base_url = callback.text("baseUrl") if callback else None
    if callback is not None:
        callback.finish()
    read = {}
    for name, node in headers.entries() if headers else ():
        text = below.text_of(node, f"{below.path('headers')}.{name}")
        read[name] = text or ""
    method = below.choice("method", ("POST", "PUT", "PATCH")) or "POST"
    timeout_ms = below.duration("timeout") or WEBHOOK_TIMEOUT_DEFAULT_MS
    if url is None:
        return None
    return WebhookTransport(url=url, method=method, headers=read, timeout_ms=timeout_ms, callback_base_url=base_url)


def _sqs_transport(below: Fields, _binding: Binding) -> Transport | None:
    urls = []
    for end in ("request", "response"):
        fields = below.below(end, required=f"write {end}: {{queueUrl: ...}}")
        url = fields.text("queueUrl", required="write the queue's URL") if fields else None
        if fields is not None:
            if url is not None and url.split("?")[0].split("#")[0].endswith(".fifo"):
                fields.note("queueUrl", "FIFO queues are not supported", "use a standard queue")
            fields.finish()
        urls.append(url)
    request_url, response_url = urls
    if request_url is None or response_url is None:
        return None
    return SqsTransport(request_queue_url=request_url, response_queue_url=response_url)
