"""The log seam: what the runtime needs of Kafka, and no more (DESIGN 9).

Two implementations, one contract suite: `streams.log.kafka.log` (confluent-kafka) and `streams.log.memory.log` (one process, for the demo,
the test driver and the simulator). Errors are those of `schemas.errors`; no client exception crosses this seam.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from schemas.topics import TopicSettings

Isolation = Literal["committed", "uncommitted"]


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Record(NamedTuple):
    """One record as it was read.

    Attributes:
        timestamp_ms: When the broker appended it, or what its producer's clock said, as the topic is set.
        appended: It is the broker's time of appending; the record itself says so, whatever the topic is set to now.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    appended: bool = False

    @property
    def size(self) -> int:
        """Bytes of the value."""
        return len(self.value) if self.value is not None else 0


class TopicState(NamedTuple):
    """A topic as it is. `topic_id` changes when a topic is deleted and made again."""

    name: str
    topic_id: str
    partitions: int
    config: Mapping[str, str]


class Rebalance(Protocol):
    """What the owner of a group consumer is told. All three run inside `poll` or `close`, never elsewhere."""

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are ours now. They start paused, at their committed offset."""

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        """These are about to go to another member; the group waits for our return."""

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        """These are gone already: nothing may be written for them any more."""


class GroupConsumer(Protocol):
    """A member of a consumer group (read_committed, range assignment, offsets committed only inside transactions)."""

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Take what is there: wait up to `timeout_s` for the first record, then drain without waiting.

        Raises:
            LogUnavailable: the broker is away; keep polling.
            InstanceFenced: a newer process took the instance id.
        """

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading from these."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read from these again."""

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read. `partition` must be assigned."""

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int | None]:
        """Committed offsets (None: never committed), stable: raises while a transaction that moves them is pending.

        Raises:
            LogUnavailable: not known within `timeout_s`, or a transaction is pending.
        """

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read, past control markers once the end was seen."""

    def metadata(self) -> object:
        """The group generation as of now; hand it to `Producer.send_offsets`. Capture it in `on_assign`."""

    def rejoin(self) -> None:
        """Join the group once more, with what the topics are now; given up and taken over inside the polls that follow."""

    def close(self) -> None:
        """Leave (a static member only stops polling); revokes first."""


class Producer(Protocol):
    """A transactional, idempotent producer with a stable id."""

    def init(self, timeout_s: float) -> None:
        """Take the transactional id: fences its older holder and ends that one's open transaction.

        Raises:
            LogUnavailable: not within `timeout_s`; call again.
        """

    def holds_id(self, topic: str, timeout_s: float) -> bool:
        """Whether no newer producer has taken the id: asks the broker with a record for `topic` that is dropped again.

        No transaction may be open.

        Raises:
            LogUnavailable: not known within `timeout_s`.
        """

    def begin(self) -> None:
        """Open a transaction."""

    def produce(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        on_offset: Callable[[int], None] | None = None,
    ) -> None:
        """Add one record to the transaction; `partition` None: Java's murmur2 over `key` (random without key).

        `on_offset` is called (from `commit`) with the record's offset once it is known. A full local queue is waited for, never an error.

        Raises:
            RecordTooLarge: larger than the client takes.
        """

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: object) -> None:
        """Make the consumed positions (next offset to read) part of the transaction; fences by group generation.

        Raises:
            TransactionAborted, ProducerFenced: as `commit`, which may be the one to raise it.
        """

    def commit(self, timeout_s: float) -> None:
        """End the transaction; all of it is visible, or none.

        Raises:
            TransactionAborted: it did not happen; call `abort`.
            RecordTooLarge: the same, because of a record.
            ProducerFenced: this producer may never write again.
            CommitUnknown: it may have happened.
        """

    def abort(self) -> None:
        """Drop the open transaction; does nothing when none is open. Errors other than fencing are swallowed: `init` of the next producer ends it."""

    def close(self) -> None:
        """Free the client; an open transaction is aborted."""


class PartitionReader(Protocol):
    """Reads partitions from given positions without a group, by position and end-of-partition, never by 'a last record'."""

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these, from these offsets; replaces the earlier assignment."""

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """As `GroupConsumer.poll`.

        Raises:
            OffsetOutOfRange: a position is below the log start (the reset policy is `error`).
            LogUnavailable: the broker is away; keep polling.
        """

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read, past control markers and compacted gaps once the end was seen."""

    def close(self) -> None:
        """Free the client."""


class PlainProducer(Protocol):
    """A non-transactional producer for doors (submit, complete)."""

    def send(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        timeout_s: float,
    ) -> int | None:
        """Write one record and wait until it is stored. Returns when the broker appended it; None: the topic keeps the sender's time.

        Raises:
            LogUnavailable: not stored within `timeout_s` (it may still arrive; ids make a repeat harmless).
        """

    def close(self) -> None:
        """Free the client."""


class Log(Protocol):
    """A broker."""

    name: str
    """`kafka` or `memory`."""
    clocks_apart_ms: int
    """How far apart the clocks of its brokers may be."""

    def group_consumer(
        self, *, group: str, instance: str | None, topics: Sequence[str], rebalance: Rebalance
    ) -> GroupConsumer:
        """Join a group; `instance` makes the member static. Input topics use `auto.offset.reset=error`."""

    def producer(self, transactional_id: str) -> Producer:
        """Make a transactional producer; `init` it before use."""

    def plain_producer(self) -> PlainProducer:
        """Make a producer for single records."""

    def reader(self, *, isolation: Isolation = "committed") -> PartitionReader:
        """Make a groupless reader."""

    def start_offsets(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """First offset still kept, per partition."""

    def end_offsets(
        self, partitions: Sequence[TopicPartition], isolation: Isolation, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """`uncommitted`: the high watermark. `committed`: the last stable offset."""

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """First offset whose timestamp is at or after `timestamp_ms`; the end when there is none."""

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float, *, stable: bool = False
    ) -> dict[TopicPartition, int | None]:
        """What any group has committed (None: never).

        Offsets of a pending transaction do not count, and are not waited for; `stable` waits for its end.

        Raises:
            LogUnavailable: not known within `timeout_s`.
        """

    def outsider(self, group: str) -> object:
        """What nobody's offsets are sent with: hand it to `Producer.send_offsets` to set offsets of a group from outside."""

    def has_member(self, group: str, instance: str, timeout_s: float) -> bool:
        """Whether the group has a static member of this name; one that is dead stays for its session timeout.

        Raises:
            LogUnavailable: not known within `timeout_s`.
        """

    def assigned(self, group: str, timeout_s: float) -> set[TopicPartition] | None:
        """What the members of a group read, all together; None while they are sharing out.

        Raises:
            LogUnavailable: not known within `timeout_s`.
        """

    def topics(self, names: Sequence[str], timeout_s: float) -> dict[str, TopicState]:
        """State of those of `names` that exist."""

    def create_topics(self, specs: Sequence[TopicSettings], timeout_s: float) -> None:
        """Create topics; one that exists already is left as it is."""

    def close(self) -> None:
        """Free what the log holds."""
