"""Doors for an author's own Python process: submit an execution, answer a request (SURFACE 'Python').

    from kawait import submit, reply
    outcome = submit("pipeline.yaml", {"orderId": "1"}, bootstrap="localhost:9092", wait=True)

`streams.doors.outcomes` and `streams.doors.answers` do the same over any log.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from schemas.envelopes import DEFAULT_TENANT
from streams.doors.answers import AnswerCommand, send_answer
from streams.doors.outcomes import STORE_TIMEOUT_S, Outcome, submit_command
from streams.doors.submissions import command_of, encode_value
from streams.log.kafka.connection import connection
from streams.log.kafka.log import KafkaLog
from streams.log.seam import Log
from topologies.pipeline.model import Pipeline
from topologies.reading.choice import PipelineChoice


def submit(
    pipeline: Pipeline | str | Path,
    value: Any = None,
    *,
    file: str | Path | None = None,
    key: str | None = None,
    bootstrap: str | None = None,
    kafka: Mapping[str, str] | None = None,
    app: str | None = None,
    tenant: str = DEFAULT_TENANT,
    wait: bool = False,
    timeout_s: float | None = None,
) -> Outcome:
    """Submit a payload (anything JSON can say, or a pydantic model) or a file; with `wait`, until the execution has ended.

    Args:
        pipeline: A loaded pipeline, or the path of its file.
        value: The payload.
        file: A file instead, for a pipeline that reads objects.
        key: Submission key: the same key is the same execution. Default: the payload's content, or the file's place and content.
        bootstrap: `host:port`; default `$KAWAIT_BOOTSTRAP`.
        kafka: librdkafka properties of your own (SASL, TLS); `KAWAIT_KAFKA_<PROPERTY>` is read too.
        app: Replaces the pipeline's app.
        tenant: Whose execution it is.
        wait: Until it has ended, not only stored.
        timeout_s: For all of it; default 30 s to store, 600 s with `wait`.

    Raises:
        UsageError: the value is not of the pipeline's input type.
        LogUnavailable: not stored, or not ended, within `timeout_s`; submitting again is harmless.
    """
    loaded = _loaded(pipeline, app)
    command = command_of(loaded, value, file=file, key=key, tenant=tenant)
    with _kafka(bootstrap, kafka) as log:
        return submit_command(loaded, log, command, wait=wait, timeout_s=timeout_s)


def reply(
    pipeline: Pipeline | str | Path,
    interaction_id: str,
    value: Any,
    *,
    token: str | None = None,
    actor: str | None = None,
    idempotency_key: str | None = None,
    bootstrap: str | None = None,
    kafka: Mapping[str, str] | None = None,
    app: str | None = None,
    timeout_s: float = STORE_TIMEOUT_S,
) -> None:
    """Answer one request: write the completion where the step expects it; admission follows there.

    Args:
        pipeline: A loaded pipeline, or the path of its file.
        interaction_id: As in the request.
        value: The answer (anything JSON can say, or a pydantic model).
        token: The request's resume token; needed under `signedResumeToken`.
        actor: Who answers.
        idempotency_key: The request's, if the outside party keeps track of it.
        bootstrap: `host:port`; default `$KAWAIT_BOOTSTRAP`.
        kafka: librdkafka properties of your own (SASL, TLS).
        app: Replaces the pipeline's app.
        timeout_s: For storing it.

    Raises:
        UsageError: the pipeline has no such await step, or the value is not of the step's answer type.
        LogUnavailable: not stored within `timeout_s`; answering again is harmless.
    """
    loaded = _loaded(pipeline, app)
    answer = AnswerCommand(interaction_id, encode_value(value), token, actor, idempotency_key)
    with _kafka(bootstrap, kafka) as log:
        send_answer(loaded, log, answer, timeout_s=timeout_s)


def _loaded(pipeline: Pipeline | str | Path, app: str | None) -> Pipeline:
    if isinstance(pipeline, Pipeline):
        return pipeline
    return PipelineChoice(path=Path(pipeline), app=app).load_without_secrets(os.environ)


@contextmanager
def _kafka(bootstrap: str | None, kafka: Mapping[str, str] | None) -> Iterator[Log]:
    given = connection(bootstrap or os.environ.get("KAWAIT_BOOTSTRAP"), None, os.environ)
    log = KafkaLog(given.bootstrap, {**given.config, **(kafka or {})})
    try:
        yield log
    finally:
        log.close()
