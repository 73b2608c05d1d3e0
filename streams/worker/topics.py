"""Topics of a pipeline: as they must be, made where they are missing, refused where they differ; and who may do what with them."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from schemas.errors import TopicMismatch
from schemas.topics import Acl, TopicSettings, acls, catalogue, mismatches, remarks
from streams.log.seam import Log, TopicState
from topologies.pipeline.ends import TopicOutput, TopicSource
from topologies.pipeline.model import Pipeline
from topologies.pipeline.transports import KafkaTransport

logger = structlog.get_logger("kawait.worker")

TOPICS_TIMEOUT_S = 30.0


def topic_settings(pipeline: Pipeline) -> list[TopicSettings]:
    """Every topic that the pipeline needs, as it must be."""
    return catalogue(
        pipeline.app,
        partitions=pipeline.partitions,
        replication_factor=pipeline.replication_factor,
        facts_retention_ms=pipeline.retention.facts_ms,
        external=pipeline.external_topics,
        responses=pipeline.response_topics,
    )


def ensure_topics(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> list[str]:
    """Create what is missing and refuse what does not fit.

    Returns:
        Names of the topics that were created.

    Raises:
        TopicMismatch: a topic has other settings than the pipeline needs; nothing was changed in it.
    """
    settings = topic_settings(pipeline)
    known = log.topics([spec.name for spec in settings], timeout_s)
    missing = [spec for spec in settings if spec.name not in known]
    if missing:
        log.create_topics(missing, timeout_s)
    verify_topics(pipeline, log, timeout_s=timeout_s)
    return [spec.name for spec in missing]


def verify_topics(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> Mapping[str, str]:
    """Check every topic; returns their ids, by name.

    Raises:
        TopicMismatch: as `verified`.
    """
    return {name: state.topic_id for name, state in verified(pipeline, log, timeout_s=timeout_s).items()}


def verified(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> Mapping[str, TopicState]:
    """Check every topic; returns them as they are, by name.

    Raises:
        TopicMismatch: a topic is missing or has other settings than the pipeline needs; every one is named.
    """
    settings = topic_settings(pipeline)
    known = log.topics([spec.name for spec in settings], timeout_s)
    problems: list[str] = []
    missing: list[str] = []
    for spec in settings:
        state = known.get(spec.name)
        if state is None:
            missing.append(spec.name)
        else:
            problems += mismatches(spec, state.partitions, state.config)
    if missing:
        named = f"{missing[0]} and {len(missing) - 1} more" if len(missing) > 1 else missing[0]
        problems.append(
            f"missing topics: {named}; create them with `kawait topics {pipeline.path} --app {pipeline.app}`"
        )
    if problems:
        raise TopicMismatch("\n".join(problems))
    return known


def topic_remarks(pipeline: Pipeline, log: Log, *, timeout_s: float = TOPICS_TIMEOUT_S) -> list[str]:
    """What is not as `ensure_topics` would make it about topics that will do nevertheless."""
    settings = [spec for spec in topic_settings(pipeline) if spec.optional]
    known = log.topics([spec.name for spec in settings], timeout_s)
    return [line for spec in settings if spec.name in known for line in remarks(spec, known[spec.name].config)]


def pipeline_acls(pipeline: Pipeline) -> list[Acl]:
    """The permissions that a pipeline's principals need."""
    transports = [step.transport for step in pipeline.await_steps if isinstance(step.transport, KafkaTransport)]
    requests = [transport.request_topic for transport in transports]
    responses = [transport.response_topic for transport in transports]
    if isinstance(pipeline.output, TopicOutput):
        requests.append(pipeline.output.topic)
    if isinstance(pipeline.source, TopicSource):
        responses.append(pipeline.source.topic)
    return acls(pipeline.app, requests=requests, responses=responses)
