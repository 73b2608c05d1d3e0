"""Release: what of a pipeline decides its executions, and the name that follows from it (DECISIONS 1).

Steps, types and topics are in it. Tunables are not (window, time-outs, retry, retention, budgets, places, owners), nor are secrets and what
functions do inside: a pipeline that differs in those only is the same release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pydantic import TypeAdapter

from topologies.pipeline.ends import CheckpointOutput, CheckpointSource, TopicOutput, TopicSource
from topologies.pipeline.model import Pipeline
from topologies.pipeline.payloads import PayloadType
from topologies.pipeline.steps import AwaitStep, Step
from topologies.pipeline.transports import KafkaTransport, SqsTransport, Transport, WebhookTransport

ID_CHARS = 12


def release_id(pipeline: Pipeline) -> str:
    """The first 12 hexadecimal digits of the sha256 of the pipeline's description as canonical JSON."""
    text = json.dumps(describe_release(pipeline), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:ID_CHARS]


def describe_release(pipeline: Pipeline) -> dict[str, Any]:
    """What decides executions, in terms of JSON."""
    return {
        "pipeline": pipeline.name,
        "input": _end(pipeline.source),
        "steps": [_step(step) for step in pipeline.steps],
        "output": _end(pipeline.output),
    }


def _end(end: object) -> dict[str, Any] | None:
    if end is None:
        return None
    described: dict[str, Any] = {"kind": type(end).__name__}
    if isinstance(end, TopicSource):
        described |= {"topic": end.topic, "key": end.key, "type": _type(end.type)}
    elif isinstance(end, TopicOutput):
        described |= {"topic": end.topic, "key": end.key}
    elif isinstance(end, (CheckpointSource, CheckpointOutput)):
        described["publication"] = end.publication
    return described


def _step(step: Step) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": step.step_id,
        "cardinality": step.cardinality,
        "input": _type(step.input),
        "output": _type(step.output),
    }
    if not isinstance(step, AwaitStep):
        accepts = None if step.accepts is None else _type(step.accepts)
        return described | {"kind": "run", "run": _function(step.function), "accepts": accepts}
    return described | {
        "kind": "await",
        "keyFields": list(step.idempotency_key_fields),
        "correlation": [step.strategy, step.request_field, step.response_field],
        "projector": None if step.projection is None else [step.projection.name, _type(step.projection.type)],
        "transport": _transport(step.transport),
    }


def _transport(transport: Transport) -> list[str]:
    match transport:
        case KafkaTransport():
            return [transport.kind, transport.request_topic, transport.response_topic]
        case SqsTransport():
            return [transport.kind, transport.request_queue_url, transport.response_queue_url]
        case WebhookTransport():
            return [transport.kind, transport.url]
        case _:
            return [transport.kind]


def _function(function: Callable[..., Any]) -> str:
    return f"{function.__module__}:{getattr(function, '__qualname__', type(function).__qualname__)}"


@lru_cache(maxsize=256)
def _type(payload: PayloadType) -> dict[str, Any]:
    try:
        schema: Any = TypeAdapter(payload.python_type).json_schema()
    except Exception:  # pydantic raises many kinds where a type has no JSON Schema; its name must do then
        schema = None
    return {"name": payload.name, "schema": schema}
