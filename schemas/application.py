"""The application: what `<app>.application` keeps about it, one key a fact, and what a start finds (DECISIONS 1 and 2).

    format          the number of the format in which rows, facts and envelopes are written
    started         the application has started: from then on every input partition has a committed offset, or lost it
    partitions      `kafka.partitions`, for the application's life
    active          the release that decides new executions
    release/<id>    what the release is, for people
    topic/<name>    of a topic: its id (another one after it was deleted and made again), and the partitions that were taken up
    paused/<step>   somebody paused the step

Values are JSON, so that people can read the topic. Pure: `found_at_start` decides, `streams.worker.application` reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from schemas.declaration import FORMAT

RELEASE, TOPIC = "release/", "topic/"

Kind = Literal["own", "source", "response"]
"""Whose a topic is: the application's; a source whose records start executions; one on which answers come in."""


class TopicTaken(msgspec.Struct, frozen=True):
    """A topic as it was taken up: its id, and how many partitions have had a committed offset."""

    id: str
    partitions: int


class Application(msgspec.Struct, frozen=True):
    """What is recorded; empty before the first start."""

    format: int | None = None
    started: bool = False
    partitions: int | None = None
    active: str | None = None
    releases: frozenset[str] = frozenset()
    topics: dict[str, TopicTaken] = {}


class TopicFound(NamedTuple):
    """A topic as it is now."""

    kind: Kind
    id: str
    partitions: int


class Found(NamedTuple):
    """What a start finds.

    Attributes:
        app: The application's name, for sentences.
        partitions: `kafka.partitions` of its pipeline.
        release, description: Of its pipeline.
        topics: By name; those that are read, and all own ones.
        has_rows: Changelogs hold records: somebody ran it before.
    """

    app: str
    partitions: int
    release: str
    description: Mapping[str, Any]
    topics: Mapping[str, TopicFound]
    has_rows: bool


class Beginning(NamedTuple):
    """What follows for a start.

    Attributes:
        refusals: Why it must not start, a sentence each with what to do; nothing else counts then.
        told: What the operator should know.
        fresh: Topic -> first partition that was never taken up: it and those behind it begin at their log start.
        again: Topics among them that were made again: what is committed was committed of the old one.
        records: Key -> value to write; empty: nothing has changed.
    """

    refusals: list[str]
    told: list[str]
    fresh: dict[str, int]
    again: frozenset[str]
    records: dict[str, bytes]


def folded(records: Iterable[tuple[str, bytes | None]]) -> Application:
    """The application that its records make, in their order; a key of a later version is passed over."""
    values = {key: value for key, value in records if value is not None}
    topics = {
        key.removeprefix(TOPIC): msgspec.json.decode(value, type=TopicTaken)
        for key, value in values.items()
        if key.startswith(TOPIC)
    }
    return Application(
        format=_value(values, "format", int),
        started=_value(values, "started", bool) or False,
        partitions=_value(values, "partitions", int),
        active=_value(values, "active", str),
        releases=frozenset(key.removeprefix(RELEASE) for key in values if key.startswith(RELEASE)),
        topics=topics,
    )


def _value(values: Mapping[str, bytes], key: str, kind: type) -> Any:
    return msgspec.json.decode(values[key], type=kind) if key in values else None


def found_at_start(application: Application, found: Found) -> Beginning:
    """Compare what is recorded with what is there."""
    refusals = [*_format_refusals(application, found), *_partition_refusals(application, found)]
    told: list[str] = []
    fresh: dict[str, int] = {}
    again: set[str] = set()
    for name, topic in found.topics.items():
        taken = application.topics.get(name)
        if taken is None:
            fresh[name] = 0
        elif taken.id != topic.id and topic.kind == "own":
            refusals.append(
                f"{name} was deleted and made again: what it held is lost, so state is no longer what happened. Put the topic back from a "
                f"copy, or go on under a new app name; to begin empty under this one, delete all topics of {found.app} first"
            )
        elif taken.id != topic.id:
            fresh[name] = 0
            again.add(name)
            told.append(
                f"{name} was deleted and made again: it is read from its start, and offsets of the old topic do not count"
            )
        elif topic.partitions > taken.partitions:
            fresh[name] = taken.partitions
            if topic.kind != "own":
                told.append(
                    f"{name} has {topic.partitions - taken.partitions} new partitions: they are read from their start"
                )
        if topic.kind == "own" and topic.partitions > found.partitions and name in _home_topics(found):
            told.append(
                f"{name} has {topic.partitions} partitions; {found.partitions} are used, for the life of {found.app}: the others stay empty"
            )
    return Beginning(refusals, told, fresh, frozenset(again), {} if refusals else _records(application, found))


def _home_topics(found: Found) -> set[str]:
    """Own topics in which a partition number means something."""
    suffixes = ("commands", "completions", "facts")
    home = {f"{found.app}.{suffix}" for suffix in suffixes}
    return home | {name for name in found.topics if name.endswith("-changelog")}


def _format_refusals(application: Application, found: Found) -> list[str]:
    known = f"{found.app}.application"
    if application.format is not None and application.format > FORMAT:
        return [
            (
                f"{known} says that a newer version of kawait wrote the state of {found.app}, in format {application.format}; this version "
                f"reads and writes format {FORMAT}. Run the newer version again: there is no way back"
            )
        ]
    if application.format is None and found.has_rows:
        return [
            (
                f"the changelogs of {found.app} hold records, but {known} is empty: a version before format {FORMAT} (0.1.0) wrote them, or that "
                "topic was deleted. Neither can be taken up: use a new app name, or delete all topics of "
                f"{found.app} to begin empty"
            )
        ]
    return []


def _partition_refusals(application: Application, found: Found) -> list[str]:
    recorded = application.partitions
    if recorded is None or recorded == found.partitions:
        return []
    return [
        (
            f"kafka.partitions is {found.partitions}, but {found.app} was started with {recorded}; which partition an execution lives in follows "
            f"from that number, so it is fixed for life. Set kafka.partitions to {recorded}; more partitions need a new app name"
        )
    ]


def _records(application: Application, found: Found) -> dict[str, bytes]:
    """What is not recorded yet, or otherwise."""
    encode = msgspec.json.encode
    wanted: dict[str, tuple[object, object]] = {
        "format": (application.format, FORMAT),
        "partitions": (application.partitions, found.partitions),
        "active": (application.active, found.release),
    }
    changed = {key: encode(now) for key, (before, now) in wanted.items() if before != now}
    if found.release not in application.releases:
        changed[f"{RELEASE}{found.release}"] = encode(found.description)
    for name, topic in found.topics.items():
        taken = TopicTaken(topic.id, topic.partitions)
        if application.topics.get(name) != taken:
            changed[f"{TOPIC}{name}"] = encode(taken)
    if not application.started:
        changed["started"] = encode(True)
    return changed
