"""The topic catalogue: every topic of an application, how it is set, who writes it and who reads it (DESIGN 4).

`TOPICS` is the one table. What `kawait topics` creates, what workers verify at start, the ACLs and the documentation come from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from schemas import limits
from schemas.errors import UsageError

RoleName = Literal["core", "ingress", "continuation", "egress", "http", "cli", "everybody"]
"""Who touches a topic: the roles of a worker, the command line, or anybody who may read."""

Spread = Literal["home", "any", "one"]
"""`home`: co-partitioned, at least `kafka.partitions`, which are used for life. `any`: made with as many, but every number works. `one`: a
single partition, so that all that is said is in one order."""

_DAY_MS = 86_400_000

WORK_RETENTION_MS = 7 * _DAY_MS
"""How long work may lie unread while all workers are stopped."""

REPLIES_RETENTION_MS = 3_600_000
"""Nobody waits longer at a door; the outcome stays readable in facts and views."""

CHANGELOG_DELETE_RETENTION_MS = _DAY_MS
"""How long a tombstone stays readable; a stored position older than half of it rebuilds from zero (DESIGN 6)."""

EXTERNAL_BYTES_MIN = limits.PAYLOAD_BYTES_MAX + 256 * 1024
"""Smallest `max.message.bytes` of a request or response topic: the largest payload, its envelope and headers."""

_CHANGELOG: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(CHANGELOG_DELETE_RETENTION_MS),
    # Only closed segments are compacted: small and young ones keep restore short.
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": str(6 * 3_600_000),
    "min.cleanable.dirty.ratio": "0.2",
}

_APPLICATION: Mapping[str, str] = {"cleanup.policy": "compact"}

_WORK: Mapping[str, str] = {"cleanup.policy": "delete", "retention.ms": str(WORK_RETENTION_MS)}

_KEPT: Mapping[str, str] = {"cleanup.policy": "delete"}
"""`retention.ms` is the setting `retention.facts`."""


class Topic(NamedTuple):
    """One row of the catalogue.

    Attributes:
        suffix: The name behind `<app>.`.
        key: What records are keyed by.
        value: What they carry; class names are Avro records of `schemas.codec`.
        spread: How many partitions.
        config: Kafka's own names; `max.message.bytes` is added to all.
        writers, readers: Who touches it.
    """

    suffix: str
    key: str
    value: str
    spread: Spread
    config: Mapping[str, str]
    writers: tuple[RoleName, ...]
    readers: tuple[RoleName, ...]


def _changelog(table: str, key: str) -> Topic:
    return Topic(
        f"{table}-changelog", key, f"rows of the {table} table", "home", _CHANGELOG, ("core",), ("core", "http", "cli")
    )


TOPICS: tuple[Topic, ...] = (
    Topic(
        suffix="commands",
        key="execution id",
        value="SubmitCommand, CancelCommand, RedriveCommand, NoteInputMoved",
        spread="home",
        config=_WORK,
        writers=("core", "http", "cli"),
        readers=("core",),
    ),
    Topic(
        suffix="completions",
        key="execution id",
        value="ProviderCompletion, ContinuationCompletion",
        spread="home",
        # On time is judged by the broker's clock, not by the sender's (policy 2).
        config={**_WORK, "message.timestamp.type": "LogAppendTime"},
        writers=("core", "ingress", "continuation", "http", "cli"),
        readers=("core",),
    ),
    Topic("facts", "execution id", "every fact", "home", _KEPT, ("core",), ("core", "http", "cli", "everybody")),
    Topic(
        suffix="replies",
        key="reply id, or execution id where nobody gave one",
        value="ExecutionOutcome",
        spread="any",
        # Retention removes whole closed segments, so segments must be shorter than it. Workers ask it for the broker's time.
        config={
            "cleanup.policy": "delete",
            "retention.ms": str(REPLIES_RETENTION_MS),
            "segment.ms": "600000",
            "message.timestamp.type": "LogAppendTime",
        },
        writers=("core",),
        readers=("core", "http", "cli"),  # core: whoever lists the input place waits for ends of executions
    ),
    Topic("continuations", "child id", "Continuation", "any", _WORK, ("core",), ("continuation",)),
    Topic(
        "dispatches",
        "interaction id",
        "requests of transports that are not Kafka",
        "any",
        _WORK,
        ("core",),
        ("egress",),
    ),
    Topic(
        suffix="refusals",
        key="execution id, if known",
        value="Refusal",
        spread="any",
        config=_KEPT,
        writers=("core", "ingress", "http"),
        readers=("http", "cli", "everybody"),
    ),
    Topic(
        suffix="dlq",
        key="the record's key",
        value="DeadLetter",
        spread="any",
        config=_KEPT,
        writers=("core", "ingress", "continuation", "egress"),
        readers=("http", "cli", "everybody"),
    ),
    Topic(
        suffix="application",
        key="what is said",
        value="JSON: releases, partitions, topics taken up",
        spread="one",
        config=_APPLICATION,
        writers=("core", "ingress", "continuation", "cli"),
        readers=("core", "ingress", "continuation", "http", "cli"),
    ),
    _changelog("executions", "execution id"),
    _changelog("units", "unit id"),
    _changelog("interactions", "unit id and item index"),
    _changelog("items", "unit id and item index"),
)
"""Every topic of an application, without the external ones that its steps name."""


class TopicSettings(NamedTuple):
    """One topic as it must be.

    Attributes:
        name: The whole name.
        partitions: How many it is made with.
        replication_factor: -1 leaves it to the broker.
        config: Kafka's own names.
        spread: Whether another number of partitions is a mismatch.
        bytes_min: Smallest `max.message.bytes` that works.
        optional: Names in `config` that one which exists already may have otherwise; `remarks` tells.
    """

    name: str
    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    spread: Spread = "any"
    bytes_min: int = 0
    optional: frozenset[str] = frozenset()


def topic_name(app: str, suffix: str) -> str:
    """The whole name of one of an application's own topics."""
    return f"{app}.{suffix}"


def catalogue(
    app: str,
    *,
    partitions: int,
    replication_factor: int,
    facts_retention_ms: int,
    external: Iterable[str] = (),
    responses: Iterable[str] = (),
) -> list[TopicSettings]:
    """Every topic that an application needs, own ones first.

    Args:
        app: Topic prefix.
        partitions: `kafka.partitions`.
        replication_factor: `kafka.replicationFactor`; -1 leaves it to the broker.
        facts_retention_ms: `retention.facts`, for facts, refusals and dead letters; -1 keeps them for ever.
        external: Names of the request and response topics of steps, of topic sources and outputs; doubles are one.
        responses: Those of them that bring answers.

    Raises:
        UsageError: A name that Kafka does not take, or a number of partitions below 1.
    """
    if partitions < 1:
        raise UsageError(f"kafka.partitions is {partitions}; it must be at least 1")
    own = [
        TopicSettings(
            name=topic_name(app, topic.suffix),
            partitions=1 if topic.spread == "one" else partitions,
            replication_factor=replication_factor,
            config=_config(topic.config, replication_factor, facts_retention_ms if topic.config is _KEPT else None),
            spread=topic.spread,
            bytes_min=limits.RECORD_BYTES_MAX,
        )
        for topic in TOPICS
    ]
    answered = frozenset(responses)
    found = [
        external_topic(name, partitions=partitions, replication_factor=replication_factor, response=name in answered)
        for name in dict.fromkeys(external)
        if name not in {settings.name for settings in own}
    ]
    for settings in (*own, *found):
        _check_name(settings.name)
    return own + found


_STAMP = "message.timestamp.type"


def external_topic(name: str, *, partitions: int, replication_factor: int, response: bool = False) -> TopicSettings:
    """A topic that the outside shares with us: made when it is missing, and taken with any number of partitions.

    A `response` topic is made with LogAppendTime, which says whether an answer came in time. One that keeps its senders' times is taken too.
    """
    own = {"cleanup.policy": "delete", **({_STAMP: "LogAppendTime"} if response else {})}
    config = _config(own, replication_factor, None)
    optional = frozenset({_STAMP}) if response else frozenset()
    return TopicSettings(name, partitions, replication_factor, config, "any", EXTERNAL_BYTES_MIN, optional)


def _config(config: Mapping[str, str], replication_factor: int, retention_ms: int | None) -> dict[str, str]:
    full = {**config, "max.message.bytes": str(limits.RECORD_BYTES_MAX)}
    if retention_ms is not None:
        full["retention.ms"] = str(retention_ms)
    if replication_factor >= 3:  # an acknowledged record survives the loss of one broker
        full["min.insync.replicas"] = "2"
    return full


def _check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in {".", ".."}:
        raise UsageError(f"{name!r} is no topic name; use 1 to 249 letters, digits, dots, dashes and underscores")


# --- verification ------------------------------------------------------------------------------------------------------------------

_KAFKA_DEFAULTS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "message.timestamp.type": "CreateTime",
    "max.message.bytes": "1048588",
    "delete.retention.ms": str(_DAY_MS),
}


def mismatches(spec: TopicSettings, actual_partitions: int, actual_config: Mapping[str, str]) -> list[str]:
    """What is wrong with a topic that exists, each with what to do about it; empty when it will do.

    Args:
        spec: The topic as it must be.
        actual_partitions: How many it has.
        actual_config: Its configuration; what is absent has Kafka's default.
    """
    actual = {**_KAFKA_DEFAULTS, **actual_config}
    found = []
    if spec.spread == "home" and actual_partitions < spec.partitions:
        found.append(
            f"{spec.name} has {actual_partitions} partitions, not {spec.partitions}; the number is fixed for life: "
            f"set kafka.partitions to {actual_partitions}, or use another app name and let `kawait topics` make its topics"
        )
    policy = spec.config["cleanup.policy"]
    if {part.strip() for part in actual["cleanup.policy"].split(",")} != {policy}:
        loss = "records would be lost by " + ("age" if policy == "compact" else "compaction")
        found.append(_alter(spec.name, "cleanup.policy", actual["cleanup.policy"], policy, loss))
    stamp = spec.config.get(_STAMP)
    if stamp and actual[_STAMP] != stamp and _STAMP not in spec.optional:
        why = "deadlines are judged by the broker's clock"
        found.append(_alter(spec.name, _STAMP, actual[_STAMP], stamp, why))
    if int(actual["max.message.bytes"]) < spec.bytes_min:
        why = f"records may have {spec.bytes_min} bytes"
        wanted = spec.config["max.message.bytes"]
        found.append(_alter(spec.name, "max.message.bytes", actual["max.message.bytes"], wanted, why))
    tombstones = spec.config.get("delete.retention.ms")
    if tombstones and int(actual["delete.retention.ms"]) < int(tombstones):
        why = "a worker that was away for hours would miss deletions"
        found.append(_alter(spec.name, "delete.retention.ms", actual["delete.retention.ms"], tombstones, why))
    return found


def remarks(spec: TopicSettings, actual_config: Mapping[str, str]) -> list[str]:
    """What is not as it would be made about a topic that will do nevertheless, each with what follows and what to do about it."""
    stamp, actual = spec.config.get(_STAMP), {**_KAFKA_DEFAULTS, **actual_config}[_STAMP]
    if _STAMP not in spec.optional or stamp is None or actual == stamp:
        return []
    why = "nobody can say when an answer came in, so every answer is in time until its deadline has rung"
    return [_alter(spec.name, _STAMP, actual, stamp, why)]


def _alter(topic: str, name: str, actual: str, wanted: str, why: str) -> str:
    """One wrong setting: what it is, why that matters, and the command that mends it."""
    return (
        f"{topic} has {name}={actual}, not {wanted} ({why}); run "
        f"`kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {name}={wanted}`"
    )


# --- access ------------------------------------------------------------------------------------------------------------------------

Principal = Literal["worker", "operator", "reader", "provider"]
"""Who holds credentials: app instances, the command line, anybody who may look, the outside party."""

_ROLES_OF: Mapping[Principal, frozenset[RoleName]] = {
    "worker": frozenset({"core", "ingress", "continuation", "egress", "http"}),
    "operator": frozenset({"cli"}),
    "reader": frozenset({"everybody"}),
}


class Acl(NamedTuple):
    """One permission, in Kafka's words.

    Attributes:
        principal: Whose.
        resource: TOPIC, GROUP or TRANSACTIONAL_ID.
        name: Of the resource.
        pattern: LITERAL or PREFIXED.
        operations: READ, WRITE, DESCRIBE, DESCRIBE_CONFIGS.
    """

    principal: Principal
    resource: Literal["TOPIC", "GROUP", "TRANSACTIONAL_ID"]
    name: str
    pattern: Literal["LITERAL", "PREFIXED"]
    operations: tuple[str, ...]


def acls(app: str, *, requests: Sequence[str] = (), responses: Sequence[str] = ()) -> list[Acl]:
    """The least that each principal needs.

    Args:
        app: Topic prefix.
        requests: Topics that workers write for the outside: requests of steps, topic outputs.
        responses: Topics that workers read from the outside: responses of steps, topic sources.
    """
    found = [
        Acl(principal, "TOPIC", topic_name(app, topic.suffix), "LITERAL", operations)
        for principal in _ROLES_OF
        for topic in TOPICS
        if (operations := _operations(principal, reads=topic.readers, writes=topic.writers))
    ]
    for name in dict.fromkeys(requests):
        found.append(Acl("worker", "TOPIC", name, "LITERAL", ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")))
        found.append(Acl("provider", "TOPIC", name, "LITERAL", ("READ", "DESCRIBE")))
    for name in dict.fromkeys(responses):
        found.append(Acl("worker", "TOPIC", name, "LITERAL", ("READ", "DESCRIBE", "DESCRIBE_CONFIGS")))
        found.append(Acl("provider", "TOPIC", name, "LITERAL", ("WRITE", "DESCRIBE")))
    # Group and transactional ids are <app>.<role>[.<instance>] (SURFACE).
    found.append(Acl("worker", "GROUP", f"{app}.", "PREFIXED", ("READ", "DESCRIBE")))
    found.append(Acl("provider", "GROUP", f"{app}-provider", "LITERAL", ("READ", "DESCRIBE")))
    found.append(Acl("worker", "TRANSACTIONAL_ID", f"{app}.", "PREFIXED", ("WRITE", "DESCRIBE")))
    return found


def _operations(principal: Principal, *, reads: Iterable[RoleName], writes: Iterable[RoleName]) -> tuple[str, ...]:
    roles = _ROLES_OF[principal]
    operations = [name for name, who in (("READ", reads), ("WRITE", writes)) if roles.intersection(who)]
    if operations:
        operations.append("DESCRIBE")
        if principal in {"worker", "operator"}:
            operations.append("DESCRIBE_CONFIGS")  # both look at how a topic is set before they use it
    return tuple(operations)
