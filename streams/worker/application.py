"""The start of a worker, as far as its application is concerned: what `<app>.application` says, what is there, and what follows (DECISIONS 2).

    look     topics as they must be; what is recorded, read to its end; `schemas.application.found_at_start` compares
    change   only where something is to be recorded: take the transactional id `<app>.application`, look again, then write the first offsets
             of what is taken up and the record of it in one transaction
    refuse   a start that does not fit, before anything is touched

So that a partition without a committed offset tells what happened to it: it is new, or it has lost what it had.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from schemas.application import Application, Beginning, Found, TopicFound, folded, found_at_start
from schemas.errors import (
    CommitUnknown,
    LogUnavailable,
    OffsetsLost,
    ProducerFenced,
    StartRefused,
    TransactionAborted,
)
from schemas.names import Names
from schemas.topics import TOPICS, topic_name
from streams.engine.role import lost_offset
from streams.log.seam import Log, TopicPartition, TopicState
from streams.worker.topics import verified
from topologies.pipeline.ends import TopicSource
from topologies.pipeline.model import Pipeline
from topologies.pipeline.release import describe_release

logger = structlog.get_logger("kawait.worker")

TIMEOUT_S = 5.0
READ_RECORDS = 1_000
READ_POLL_S = 0.1
TRIES_MAX = 20
PAUSE_S_MAX = 0.5


@dataclass(frozen=True, slots=True)
class TakenUp:
    """What a worker knows of its application once it may start.

    Attributes:
        topic_ids: By topic name.
        taken: Input topic -> how many of its partitions have had a committed offset.
    """

    topic_ids: Mapping[str, str]
    taken: Mapping[str, int]


def inputs_of(pipeline: Pipeline) -> dict[str, tuple[str, ...]]:
    """The input topics of each role."""
    names = Names.of(pipeline.app)
    source = (pipeline.source.topic,) if isinstance(pipeline.source, TopicSource) else ()
    return {
        "core": (names.commands, names.completions),
        "ingress": (*pipeline.response_topics, *source),
        "continuation": (names.continuations,),
    }


def vital_topics(pipeline: Pipeline) -> frozenset[str]:
    """Inputs of which no record may be taken up twice or passed over; answers are deduped by their admission, so theirs may be."""
    source = {pipeline.source.topic} if isinstance(pipeline.source, TopicSource) else set()
    return frozenset({Names.of(pipeline.app).commands, *source})


def take_up(pipeline: Pipeline, log: Log, *, wait: Callable[[float], object] = lambda _seconds: None) -> TakenUp:
    """See whether a worker may start, and record what it takes up.

    Raises:
        TopicMismatch: a topic is missing or not as it must be.
        StartRefused: what is recorded does not fit; every reason is named.
        OffsetsLost: a committed offset is gone that nobody can guess.
        LogUnavailable: the broker does not answer; nothing was changed, or all of it.
    """
    start = _Start(pipeline, log)
    for _ in range(TRIES_MAX):
        known, beginning = start.look()
        if not beginning.records:
            return start.taken_up(known)
        try:
            known, beginning = start.change()
        except (
            ProducerFenced,
            TransactionAborted,
            CommitUnknown,
        ) as error:  # another worker starts too; what it did is seen next
            logger.debug("another start came between", detail=str(error))
            wait(random.uniform(0.0, PAUSE_S_MAX))  # noqa: S311 - so that two that meet do not meet again
            continue
        return start.taken_up(known)
    raise LogUnavailable(
        f"{pipeline.app}.application could not be written: other starts came between {TRIES_MAX} times"
    )


def wait_for_start(pipeline: Pipeline, log: Log, stop: threading.Event) -> TakenUp | None:
    """As `take_up`, waiting for the broker as long as it takes; None when told to stop meanwhile."""
    waiting = False
    while not stop.is_set():
        try:
            return take_up(pipeline, log, wait=stop.wait)
        except LogUnavailable as error:
            if not waiting:
                logger.warning("waiting for the broker", detail=str(error))
                waiting = True
            stop.wait(1.0)
    return None


class _Start:
    """One start of one worker."""

    def __init__(self, pipeline: Pipeline, log: Log) -> None:
        self._pipeline = pipeline
        self._log = log
        self._names = Names.of(pipeline.app)
        self._topic = topic_name(pipeline.app, "application")
        self._groups = {self._names.group(role): topics for role, topics in inputs_of(pipeline).items() if topics}

    def look(self) -> tuple[Mapping[str, TopicState], Beginning]:
        """What is there, and what follows from it.

        Raises:
            StartRefused, OffsetsLost: nothing may follow.
        """
        known = verified(self._pipeline, self._log, timeout_s=TIMEOUT_S)
        application = folded(self._recorded())
        beginning = found_at_start(application, self._found(known, application))
        if beginning.refusals:
            raise StartRefused("\n".join(beginning.refusals))
        self._refuse_lost(application, beginning)
        return known, beginning

    def change(self) -> tuple[Mapping[str, TopicState], Beginning]:
        """Take the id, look again, and record what follows.

        Raises:
            ProducerFenced, TransactionAborted: another start came between; nothing was changed.
            CommitUnknown: look again.
        """
        producer = self._log.producer(self._topic)
        try:
            producer.init(TIMEOUT_S)
            known, beginning = self.look()
            if beginning.records:
                producer.begin()
                for group, offsets in self._first_offsets(known, beginning).items():
                    producer.send_offsets(offsets, self._log.outsider(group))
                for key, value in beginning.records.items():
                    producer.produce(self._topic, value, key=key.encode(), partition=0)
                producer.commit(TIMEOUT_S)
        finally:
            producer.close()
        for sentence in beginning.told:
            logger.warning(sentence)
        return known, beginning

    def taken_up(self, known: Mapping[str, TopicState]) -> TakenUp:
        """The worker may start."""
        inputs = {topic for topics in self._groups.values() for topic in topics}
        return TakenUp(
            {name: state.topic_id for name, state in known.items()},
            {name: state.partitions for name, state in known.items() if name in inputs},
        )

    def _recorded(self) -> list[tuple[str, bytes | None]]:
        """What is recorded, up to the end as it is once no transaction is open.

        Raises:
            LogUnavailable: somebody is about to record something, or the broker does not answer.
        """
        at = TopicPartition(self._topic, 0)
        end = self._log.end_offsets([at], "uncommitted", TIMEOUT_S)[at]
        if self._log.end_offsets([at], "committed", TIMEOUT_S)[at] != end:
            raise LogUnavailable(f"another start writes {self._topic}")
        reader = self._log.reader()
        found: list[tuple[str, bytes | None]] = []
        try:
            start = self._log.start_offsets([at], TIMEOUT_S)[at]
            reader.assign({at: start})
            while start < end and reader.position(at) < end:
                records = reader.poll(READ_RECORDS, READ_POLL_S)
                found += [(record.key.decode(), record.value) for record in records if record.key is not None]
        finally:
            reader.close()
        return found

    def _found(self, known: Mapping[str, TopicState], application: Application) -> Found:
        pipeline = self._pipeline
        own = {topic_name(pipeline.app, topic.suffix) for topic in TOPICS}
        source = {pipeline.source.topic} if isinstance(pipeline.source, TopicSource) else set()
        topics: dict[str, TopicFound] = {}
        for name, state in known.items():
            if name in own:
                topics[name] = TopicFound("own", state.topic_id, state.partitions)
            elif name in source or name in pipeline.response_topics:
                kind = "source" if name in source else "response"
                topics[name] = TopicFound(kind, state.topic_id, state.partitions)  # type: ignore[arg-type] # one of the two
        return Found(
            pipeline.app,
            pipeline.partitions,
            pipeline.release,
            describe_release(pipeline),
            topics,
            application.format is None and self._has_rows(known),
        )

    def _has_rows(self, known: Mapping[str, TopicState]) -> bool:
        """Whether somebody ran the application before it was recorded."""
        topic = self._names.changelog("executions")
        partitions = [TopicPartition(topic, number) for number in range(known[topic].partitions)]
        return any(self._log.end_offsets(partitions, "uncommitted", TIMEOUT_S).values())

    def _refuse_lost(self, application: Application, beginning: Beginning) -> None:
        """Refuse to start where a committed offset is gone that nobody can guess."""
        vital = vital_topics(self._pipeline) - beginning.again
        for group, topics in self._groups.items():
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in vital and topic in application.topics
                for number in range(self._used(topic, application.topics[topic].partitions))
            ]
            committed = self._log.group_offsets(group, partitions, TIMEOUT_S, stable=True)
            lost = [at for at in partitions if committed.get(at) is None]
            if lost:
                more = f" ({len(lost) - 1} more partitions lost theirs)" if len(lost) > 1 else ""
                raise OffsetsLost(lost_offset(group, lost[0]) + more)

    def _used(self, topic: str, partitions: int) -> int:
        """Of own topics only as many partitions are read as the application has."""
        is_own = topic in (self._names.commands, self._names.completions)
        return min(partitions, self._pipeline.partitions) if is_own else partitions

    def _first_offsets(
        self, known: Mapping[str, TopicState], beginning: Beginning
    ) -> dict[str, dict[TopicPartition, int]]:
        """By group: the log starts of what is taken up now, where nothing is committed yet or what is committed was of another topic."""
        found: dict[str, dict[TopicPartition, int]] = {}
        for group, topics in self._groups.items():
            partitions = [
                TopicPartition(topic, number)
                for topic in topics
                if topic in beginning.fresh
                for number in range(beginning.fresh[topic], self._used(topic, known[topic].partitions))
            ]
            committed = self._log.group_offsets(group, partitions, TIMEOUT_S, stable=True)
            fresh = [at for at in partitions if committed.get(at) is None or at.topic in beginning.again]
            starts = self._log.start_offsets(fresh, TIMEOUT_S)
            if starts:
                found[group] = dict(starts)
        return found
