"""The demo's workers and provider as processes on a real Kafka.

Each run has an app name of its own, so that runs can share a broker; what it made there is removed at the end. The core and the other roles of
a worker are two processes: Python computes on one core a process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupState, KafkaException
from confluent_kafka.admin import AdminClient

from schemas.errors import LogUnavailable
from schemas.names import Names
from streams.broker.node import running_broker
from streams.clock import SystemClock
from streams.demo.run import PIPELINE, DemoFailed, DemoSettings
from streams.log.kafka.connection import Connection
from streams.log.kafka.log import KafkaLog
from streams.log.kafka.settings import KafkaSettings
from streams.log.seam import Log
from streams.process.child import Child, end_all
from streams.worker.topics import ensure_topics, topic_settings
from topologies.pipeline.model import Pipeline

READY_TIMEOUT_S = 60.0
PROVIDER = "provider"
ADMIN_TIMEOUT_S = 10.0
PROCESSES: tuple[tuple[str, str], ...] = (("core", "core"), ("ingress", "ingress,continuation"))
"""Processes of one worker: name, roles."""


@dataclass
class KafkaStage:
    """Child processes on a broker."""

    log: Log
    pipeline: Pipeline
    children: list[Child] = field(default_factory=list)

    def check(self) -> None:
        """Do nothing while every process runs."""
        for child in self.children:
            child.check()


@contextmanager
def kafka_stage(
    settings: DemoSettings,
    environ: Mapping[str, str],
    folder: Path,
    *,
    given: Connection | None,
    properties_file: Path | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> Iterator[KafkaStage]:
    """Workers and a provider that are ready, on a broker.

    Args:
        settings: What is run.
        environ: With the token keys.
        folder: An empty one, for state and logs.
        given: The broker; None starts a throw-away one.
        properties_file: The user's librdkafka properties, for the children.
        report: Gets a line of progress for a person.
    """
    with ExitStack() as stack:
        # Even a throw-away broker may be a given one: $KAWAIT_BOOTSTRAP.
        place = given or Connection(bootstrap=stack.enter_context(running_broker(report)))
        app = settings.app or f"csv-payments-{secrets.token_hex(4)}"
        idle = folder / "in"
        idle.mkdir()
        pipeline = settings.choice(idle, app).load(environ)
        log = KafkaLog(place.bootstrap, place.config)
        stack.callback(log.close)
        report(f"creating topics of {app} on {place.bootstrap}")
        shared = given is not None or "KAWAIT_BOOTSTRAP" in environ
        if settings.app is None and shared:
            stack.callback(remove_app, pipeline, place)
        ensure_topics(pipeline, log)
        stage = KafkaStage(log, pipeline)
        stack.callback(lambda: end_all(stage.children))
        report("starting worker and provider")
        common = _common(settings, idle, app, place, properties_file)
        for name, arguments in _commands(settings, folder, common):
            stage.children.append(Child(name, arguments, environ=environ, log_path=folder / f"{name}.log"))
        until_s = SystemClock().monotonic_s() + READY_TIMEOUT_S
        for child in stage.children:
            if child.name != PROVIDER:
                child.wait_ready(until_s)
        _wait_for_group(place, f"{app}-provider", stage.check, until_s)
        yield stage


def _common(settings: DemoSettings, idle: Path, app: str, place: Connection, properties_file: Path | None) -> list[str]:
    overrides = [part for override in settings.choice(idle, app).overrides for part in ("--set", override)]
    config = ["--config", str(properties_file)] if properties_file else []
    return [str(PIPELINE), "--app", app, "--bootstrap", place.bootstrap, *overrides, *config]


def _commands(settings: DemoSettings, folder: Path, common: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    for number in range(1, settings.workers + 1):
        for name, roles in PROCESSES:
            own = ["--roles", roles, "--instance", "auto", "--state-dir", str(folder / f"state-{number}-{name}")]
            yield f"worker-{number}-{name}", ["worker", *common, *own, "--admin-port", "off"]
    yield PROVIDER, ["provider", *common, "--reject-rate", str(settings.reject_rate)]


def _wait_for_group(place: Connection, group: str, check: Callable[[], None], until_s: float) -> None:
    """Wait until the group's members own their partitions.

    Raises:
        DemoFailed: not in time.
    """
    clock, admin = SystemClock(), _admin(place)
    while True:
        check()
        described: Future[Any] = admin.describe_consumer_groups([group], request_timeout=ADMIN_TIMEOUT_S)[group]
        try:
            found = described.result(ADMIN_TIMEOUT_S)
            if found.state is ConsumerGroupState.STABLE and any(m.assignment.topic_partitions for m in found.members):
                return
        except (KafkaException, TimeoutError):
            pass
        if clock.monotonic_s() > until_s:
            raise DemoFailed(f"the group {group} was not ready within {READY_TIMEOUT_S:g} s")


def remove_app(pipeline: Pipeline, place: Connection) -> None:
    """Remove an application's topics and groups from a broker, as far as it is there."""
    admin = _admin(place)
    names = Names.of(pipeline.app)
    topics = [spec.name for spec in topic_settings(pipeline)]
    groups = [names.group(role) for role in ("core", "ingress", "continuation")] + [f"{pipeline.app}-provider"]
    futures: list[Future[Any]] = []
    try:
        futures += admin.delete_topics(topics, operation_timeout=ADMIN_TIMEOUT_S).values()
        futures += admin.delete_consumer_groups(groups, request_timeout=ADMIN_TIMEOUT_S).values()
    except KafkaException:
        return
    for future in futures:
        try:
            future.result(ADMIN_TIMEOUT_S)
        except (KafkaException, TimeoutError, LogUnavailable):
            continue


def _admin(place: Connection) -> AdminClient:
    return AdminClient(KafkaSettings(place.bootstrap, place.config).admin())
