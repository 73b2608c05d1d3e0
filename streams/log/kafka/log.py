"""The log seam on Apache Kafka, with confluent-kafka (DESIGN 2 and 6).

settings        what every client is set to, and why
connection      the way to the broker, and the user's own properties
errors          what the client's errors mean in ours
bounded_call    a call of the client that may never return, bounded
consumer        group member and reader
producer        transactional and plain producer
log             this: the broker as a whole, topics and offsets
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from schemas.errors import LogUnavailable
from schemas.topics import TopicSettings
from streams.log.kafka.consumer import KafkaGroupConsumer, KafkaReader
from streams.log.kafka.errors import NO_LEADER, error_of, unavailable
from streams.log.kafka.producer import KafkaPlainProducer, KafkaProducer
from streams.log.kafka.settings import KafkaSettings, client_logger
from streams.log.seam import Isolation, Rebalance, TopicPartition, TopicState

_T = TypeVar("_T")

CLOCKS_APART_MS = 1_000
"""How far apart the clocks of a cluster's brokers are taken to be, at most."""

_STALE = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - the client's own code
    }
)
"""Measured: after a restart of the broker the admin client goes on asking with the leader epochs that it knew, and of a topic that has grown
it knows the former partitions only, until it has listed all topics anew."""
_PASSING = frozenset({KafkaError.LEADER_NOT_AVAILABLE, NO_LEADER, KafkaError.UNSTABLE_OFFSET_COMMIT}) | _STALE
_PASSING_WAIT_S = 0.05
_ISOLATION = {"committed": IsolationLevel.READ_COMMITTED, "uncommitted": IsolationLevel.READ_UNCOMMITTED}


class KafkaLog:
    """A Kafka cluster.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: The user's own librdkafka settings, for example `security.protocol`.
    """

    name = "kafka"
    clocks_apart_ms = CLOCKS_APART_MS

    def __init__(self, bootstrap: str, config: Mapping[str, str] | None = None) -> None:
        self.bootstrap = bootstrap
        self.last_error: str | None = None
        """What a client last complained about in the background; for health, not for decisions."""
        self._settings = KafkaSettings(bootstrap, config)
        self._onlookers: dict[tuple[str, str], Consumer] = {}
        self._onlooking = threading.Lock()
        self._admin = AdminClient({**self._settings.admin(), "error_cb": self._on_error})  # type: ignore[dict-item] # its stub forgets callbacks

    def _on_error(self, error: KafkaError) -> None:
        self._note(error.str())

    def _note(self, text: str) -> None:
        self.last_error = text

    def group_consumer(
        self, *, group: str, instance: str | None, topics: Sequence[str], rebalance: Rebalance
    ) -> KafkaGroupConsumer:
        """Join a group, at the first poll; `instance` makes the member static."""
        return KafkaGroupConsumer(
            self._settings,
            group=group,
            instance=instance,
            topics=topics,
            rebalance=rebalance,
            note=self._note,
        )

    def producer(self, transactional_id: str) -> KafkaProducer:
        """Make a transactional producer; `init` it before use."""
        return KafkaProducer(self._settings, transactional_id, self._note)

    def plain_producer(self) -> KafkaPlainProducer:
        """Make a producer for single records."""
        return KafkaPlainProducer(self._settings, self._note)

    def reader(self, *, isolation: Isolation = "committed") -> KafkaReader:
        """Make a groupless reader."""
        return KafkaReader(self._settings, isolation=isolation, note=self._note)

    def start_offsets(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """First offset still kept, per partition."""
        return self._offsets(
            partitions,
            OffsetSpec.earliest(),  # type: ignore[no-untyped-call]
            "uncommitted",
            timeout_s,
        )

    def end_offsets(
        self, partitions: Sequence[TopicPartition], isolation: Isolation, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """The high watermark or the last stable offset, per partition."""
        return self._offsets(
            partitions,
            OffsetSpec.latest(),  # type: ignore[no-untyped-call]
            isolation,
            timeout_s,
        )

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """First offset whose timestamp is at or after `timestamp_ms`; the end when there is none."""
        found = self._offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms), "uncommitted", timeout_s)
        beyond = [at for at, offset in found.items() if offset < 0]
        if beyond:
            found.update(self.end_offsets(beyond, "uncommitted", timeout_s))
        return found

    def _offsets(
        self, partitions: Sequence[TopicPartition], spec: OffsetSpec, isolation: Isolation, timeout_s: float
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        asked = {ClientPartition(at.topic, at.partition): spec for at in partitions}

        def ask(left_s: float) -> dict[TopicPartition, int]:
            answers = self._admin.list_offsets(asked, isolation_level=_ISOLATION[isolation], request_timeout=left_s)
            return {TopicPartition(at.topic, at.partition): f.result(left_s).offset for at, f in answers.items()}

        return self._until(timeout_s, f"offsets of {_names(partitions)}", ask)

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float, *, stable: bool = False
    ) -> dict[TopicPartition, int | None]:
        """What any group has committed; `stable` waits for the end of a pending transaction.

        Measured: the admin client's call for stable offsets ends the process now and then, by a segmentation fault in librdkafka, within seconds
        when groups are new. A consumer that never joins asks the same.
        """
        if not partitions:
            return {}
        asked = [ClientPartition(at.topic, at.partition) for at in partitions]
        client = self._onlooker(group, "read_committed" if stable else "read_uncommitted")

        def ask(left_s: float) -> dict[TopicPartition, int | None]:
            found: dict[TopicPartition, int | None] = {}
            for at in client.committed(asked, timeout=left_s):
                if at.error is not None:
                    raise KafkaException(at.error)
                found[TopicPartition(at.topic, at.partition)] = at.offset if at.offset >= 0 else None
            return found

        return self._until(timeout_s, f"committed offsets of group {group}", ask)

    def _onlooker(self, group: str, isolation: str) -> Consumer:
        """A consumer of a group that never joins it."""
        with self._onlooking:
            found = self._onlookers.get((group, isolation))
            if found is None:
                settings = {**self._settings.group_consumer(group, None), "isolation.level": isolation}
                found = self._onlookers[group, isolation] = Consumer(settings, logger=client_logger)
            return found

    def outsider(self, group: str) -> object:
        """The metadata of a consumer that never joins: the broker takes its offsets in a transaction, whoever the members are (M)."""
        return self._onlooker(group, "read_committed").consumer_group_metadata()

    def has_member(self, group: str, instance: str, timeout_s: float) -> bool:
        """Whether the group has a static member of this name."""

        def ask(left_s: float) -> bool:
            described = self._admin.describe_consumer_groups([group], request_timeout=left_s)[group].result(left_s)
            return any(member.group_instance_id == instance for member in described.members)

        return self._until(timeout_s, f"members of group {group}", ask)

    def assigned(self, group: str, timeout_s: float) -> set[TopicPartition] | None:
        """What the members of a group read, all together; None while they are sharing out."""

        def ask(left_s: float) -> set[TopicPartition] | None:
            described = self._admin.describe_consumer_groups([group], request_timeout=left_s)[group].result(left_s)
            if described.state is not ConsumerGroupState.STABLE:
                return None
            shares = (member.assignment.topic_partitions for member in described.members)
            return {TopicPartition(at.topic, at.partition) for share in shares for at in share}

        return self._until(timeout_s, f"members of group {group}", ask)

    def topics(self, names: Sequence[str], timeout_s: float) -> dict[str, TopicState]:
        """State of those of `names` that exist."""
        if not names:
            return {}

        def ask(left_s: float) -> dict[str, TopicState]:
            found = self._describe(names, left_s)
            if not found:
                return {}
            resources = [ConfigResource(ResourceType.TOPIC, name) for name in found]
            answers = self._admin.describe_configs(resources, request_timeout=left_s)
            configs = {resource.name: f.result(left_s) for resource, f in answers.items()}
            return {
                name: TopicState(
                    name,
                    str(topic.topic_id),
                    len(topic.partitions),
                    {entry.name: entry.value for entry in configs[name].values() if entry.value is not None},
                )
                for name, topic in found.items()
            }

        return self._until(timeout_s, "topics", ask)

    def _describe(self, names: Sequence[str], timeout_s: float) -> dict[str, Any]:
        """The client's descriptions of those topics that exist."""
        found = {}
        answers = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=timeout_s)
        for name, future in answers.items():
            try:
                found[name] = future.result(timeout_s)
            except KafkaException as raised:
                if error_of(raised).code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return found

    def create_topics(self, specs: Sequence[TopicSettings], timeout_s: float) -> None:
        """Create topics and wait until every one of them can be used; one that exists already is left as it is."""
        if not specs:
            return
        new = [NewTopic(s.name, s.partitions, s.replication_factor, config=dict(s.config)) for s in specs]
        end_s = time.monotonic() + timeout_s

        def ask(left_s: float) -> None:
            for future in self._admin.create_topics(new, request_timeout=left_s).values():
                try:
                    future.result(left_s)
                except KafkaException as raised:
                    if error_of(raised).code() != KafkaError.TOPIC_ALREADY_EXISTS:
                        raise

        self._until(timeout_s, f"new topics {', '.join(s.name for s in specs)}", ask)
        while len(
            self._until(timeout_s, "topics", lambda left_s: self._describe([s.name for s in specs], left_s))
        ) < len(specs):
            if time.monotonic() > end_s:
                raise LogUnavailable(f"the broker at {self.bootstrap} does not show the new topics yet")
            time.sleep(_PASSING_WAIT_S)

    def _until(self, timeout_s: float, doing: str, ask: Callable[[float], _T]) -> _T:
        """Ask the cluster; again while a leader is being chosen or the client does not know the new one.

        Raises:
            LogUnavailable: no answer within `timeout_s`.
            UsageError: refused.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            try:
                return ask(max(0.1, end_s - time.monotonic()))
            except KafkaException as raised:
                code = error_of(raised).code()
                if code in _STALE:
                    with contextlib.suppress(KafkaException):
                        self._admin.list_topics(timeout=max(0.1, end_s - time.monotonic()))
                if code not in _PASSING or time.monotonic() > end_s:
                    raise unavailable(raised, doing, self.bootstrap) from raised
            except FutureTimeoutError as raised:
                raise LogUnavailable(f"no answer from the broker at {self.bootstrap} for {doing}") from raised
            time.sleep(_PASSING_WAIT_S)

    def close(self) -> None:
        """Free the consumers that only look; the admin client ends with this object."""
        with self._onlooking:
            for client in self._onlookers.values():
                client.close()
            self._onlookers.clear()


def _names(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(f"{at.topic}[{at.partition}]" for at in partitions[:4])
