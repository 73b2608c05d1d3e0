"""Reading Kafka: the group member and the groupless reader (DESIGN 6, set-up and restore)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as ClientPartition

from schemas.errors import InstanceFenced, KawaitError, OffsetOutOfRange
from streams.log.kafka.errors import (
    ALL_BROKERS_DOWN,
    AUTO_OFFSET_RESET,
    MAX_POLL_EXCEEDED,
    PARTITION_EOF,
    error_of,
    unavailable,
)
from streams.log.kafka.settings import KafkaSettings, client_logger
from streams.log.seam import Isolation, Rebalance, Record, TopicPartition

_SEEK_TIMEOUT_S = 5.0
_COMMITTED_TIMEOUT_S = 5.0
_WAKE_TIMEOUT_S = 0.5
_START_TIMEOUT_S = 1.0
_OUT_OF_RANGE = frozenset({AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_MEMBER_FENCED = frozenset({KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID})  # noqa: SLF001

ErrorSink = Callable[[str], None]
"""Where a client's background errors are noted."""


def _to_client(partitions: Sequence[TopicPartition]) -> list[ClientPartition]:
    return [ClientPartition(at.topic, at.partition) for at in partitions]


def _from_client(partitions: Sequence[ClientPartition]) -> list[TopicPartition]:
    return [TopicPartition(at.topic, at.partition) for at in partitions]


class _Polling:
    """One client consumer: polling, conversion, and what its errors mean."""

    def __init__(self, settings: Mapping[str, Any], bootstrap: str, note: ErrorSink) -> None:
        self._bootstrap = bootstrap
        self._note = note
        self._down: KafkaError | None = None
        self._fatal: KafkaError | None = None
        self._held: KawaitError | None = None  # came amid records; raised once those are handed over
        self.client = Consumer({**settings, "error_cb": self._on_error}, logger=client_logger)

    def _on_error(self, error: KafkaError) -> None:
        """Background errors; runs inside `poll`."""
        self._note(error.str())
        if error.fatal():
            self._fatal = error
        elif error.code() == ALL_BROKERS_DOWN:
            self._down = error

    def first(self, timeout_s: float) -> Message | None:
        """Wait for one message."""
        if self._held is not None:
            held, self._held = self._held, None
            raise held
        message = self.client.poll(timeout_s)
        if self._fatal is not None:
            raise InstanceFenced(f"fenced by the broker: {self._fatal.str()}")
        if message is None and self._down is not None:
            error, self._down = self._down, None
            raise unavailable(error, "records", self._bootstrap)
        return message

    def drain(self, records_max: int) -> list[Message]:
        """Take what is there; `consume(n, timeout)` with a timeout would wait for all n (DESIGN 6)."""
        return self.client.consume(records_max, 0) if records_max > 0 else []

    def convert(self, messages: Sequence[Message], on_end: Callable[[TopicPartition, int], None]) -> list[Record]:
        """Messages as records; `on_end` hears of ends of partitions. An error never costs the records beside it."""
        problem: KawaitError | None = None
        records: list[Record] = []
        m: Any  # its fields are set in a message without an error, whatever the stub says
        for m in messages:
            if m.error() is not None:
                problem = self._judge(m, on_end) or problem
                continue
            headers = m.headers() or ()
            kind, at_ms = m.timestamp()
            appended = kind == TIMESTAMP_LOG_APPEND_TIME
            records.append(Record(m.topic(), m.partition(), m.offset(), at_ms, m.key(), m.value(), headers, appended))
        if problem is not None and not records:
            raise problem
        self._held = problem
        return records

    def _judge(self, message: Message, on_end: Callable[[TopicPartition, int], None]) -> KawaitError | None:
        """What an error in place of a message means: an end, something to raise, or nothing."""
        error: Any = message.error()
        code = error.code()
        if code == PARTITION_EOF:
            on_end(TopicPartition(message.topic() or "", message.partition() or 0), message.offset() or 0)
            return None
        self._note(error.str())
        if code in _OUT_OF_RANGE:
            where = f"{message.topic()}[{message.partition()}]"
            return OffsetOutOfRange(f"{where} does not keep the position {message.offset()}: {error.str()}")
        if error.fatal() or code in _MEMBER_FENCED:
            return InstanceFenced(f"fenced by the broker: {error.str()}")
        if code == MAX_POLL_EXCEEDED:  # the rebalance callbacks tell
            return None
        return unavailable(error, f"records of {message.topic()}", self._bootstrap)


class KafkaGroupConsumer:
    """A `streams.log.seam.GroupConsumer` on Kafka."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        group: str,
        instance: str | None,
        topics: Sequence[str],
        rebalance: Rebalance,
        note: ErrorSink,
    ) -> None:
        self._bootstrap = settings.bootstrap
        self._rebalance = rebalance
        self._note = note
        self._sought: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}  # ends as they were reached
        self._assigned: set[TopicPartition] = set()
        self._raised: BaseException | None = None
        self._rebalances = 0
        self._closed = False
        self._polling = _Polling(settings.group_consumer(group, instance), settings.bootstrap, note)
        self._client = self._polling.client
        self._topics = list(topics)
        self._subscribe()

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Take what is there: wait for the first record, then drain without waiting."""
        end_s = time.monotonic() + timeout_s
        while True:
            first = self._polling.first(max(0.0, end_s - time.monotonic()))
            self._raise_from_callback()
            if first is None:
                return []
            before = self._rebalances
            messages = self._polling.drain(records_max - 1)
            self._raise_from_callback()
            if self._rebalances == before:  # else `first` belongs to partitions that were given up meanwhile
                messages.insert(0, first)
            records = self._polling.convert(messages, self._ends.__setitem__)
            if records or timeout_s <= 0:
                return records

    def rejoin(self) -> None:
        """Join the group once more. Measured: a static member sends no leave, and as the group's leader it makes the group share out anew."""
        self._client.unsubscribe()
        self._subscribe()

    def _subscribe(self) -> None:
        self._client.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading from these."""
        self._client.pause(_to_client(partitions))

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read from these again, at once.

        Measured: a mere resume, or a seek to a bare offset, is noticed up to a second later, because the client's broker
        thread sleeps while all is paused. A seek with the leader epoch (as `position` gives it) makes it send a request
        and so wakes it; where there is no epoch yet, any other request to the leaders does.
        """
        asleep: list[ClientPartition] = []
        for at, known in zip(partitions, self._client.position(_to_client(partitions)), strict=True):
            if known.offset >= 0:
                self._sought[at] = known.offset  # the client forgets its position with the seek
                self._seek(known)
                continue
            if at not in self._sought:
                self._seek_committed(at)
            target = ClientPartition(at.topic, at.partition, self._sought[at])
            self._seek(target)
            asleep.append(target)
        self._client.resume(_to_client(partitions))
        if asleep:
            with contextlib.suppress(KafkaException):
                self._client.offsets_for_times(asleep, timeout=_WAKE_TIMEOUT_S)

    def _seek_committed(self, at: TopicPartition) -> None:
        offset = self.committed([at], _COMMITTED_TIMEOUT_S)[at]
        if offset is None:
            raise OffsetOutOfRange(f"{at.topic}[{at.partition}] has no committed offset; seek before resume")
        self.seek(at, offset)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read."""
        if partition not in self._assigned:
            raise ValueError(f"{partition.topic}[{partition.partition}] is not assigned")
        self._sought[partition] = offset
        self._ends.pop(partition, None)
        self._seek(ClientPartition(partition.topic, partition.partition, offset))

    def _seek(self, target: ClientPartition) -> None:
        """Seek, and try again while the client has not started the partition yet."""
        end_s = time.monotonic() + _SEEK_TIMEOUT_S
        while True:
            try:
                self._client.seek(target)
            except KafkaException as raised:
                if time.monotonic() > end_s:
                    raise unavailable(
                        raised, f"seek in {target.topic}[{target.partition}]", self._bootstrap
                    ) from raised
                time.sleep(0.005)
            else:
                return

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int | None]:
        """Committed offsets, stable; a pending transaction keeps the broker from answering."""
        try:
            answer = self._client.committed(_to_client(partitions), timeout=timeout_s)
        except KafkaException as raised:
            raise unavailable(raised, "committed offsets (a transaction may be pending)", self._bootstrap) from raised
        found: dict[TopicPartition, int | None] = {}
        for at in answer:
            if at.error is not None:
                raise unavailable(at.error, f"the committed offset of {at.topic}[{at.partition}]", self._bootstrap)
            found[TopicPartition(at.topic, at.partition)] = at.offset if at.offset >= 0 else None
        return found

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read, past control markers once the end was seen."""
        known = self._client.position([ClientPartition(partition.topic, partition.partition)])[0].offset
        read = known if known >= 0 else self._sought.get(partition, -1)
        if read < 0:
            raise ValueError(f"{partition.topic}[{partition.partition}] has no position yet; seek first")
        return max(read, self._ends.get(partition, 0))

    def metadata(self) -> object:
        """The group generation as of now."""
        return self._client.consumer_group_metadata()

    def close(self) -> None:
        """Revoke and leave; a static member sends no leave."""
        if self._closed:
            return
        self._closed = True
        self._client.close()
        self._raise_from_callback()

    def _on_assign(self, _: Consumer, partitions: list[ClientPartition]) -> None:
        """Assign first, then pause: the other order pauses nothing (DESIGN 6).

        Nothing is read from the start that is given here, as `resume` always seeks before. It is a plain offset all the same. Measured: for
        a logical one (end, beginning, stored) the client asks the broker, and an answer on its way when the seek comes wins over the seek:
        a third of the consumers on fresh topics lost a partition's first records to the end that they were assigned at.
        """
        self._rebalances += 1
        self._client.assign(self._log_starts(partitions))
        self._client.pause(partitions)
        if self._closed:  # a rebalance was under way: the owner has stopped
            return
        mine = _from_client(partitions)
        self._assigned, self._sought, self._ends = set(mine), {}, {}
        self._tell(self._rebalance.on_assign, mine)

    def _log_starts(self, partitions: Sequence[ClientPartition]) -> list[ClientPartition]:
        """Partitions with the first offsets they keep, in one request; 0 where the broker does not say."""
        asked = [ClientPartition(at.topic, at.partition, OFFSET_BEGINNING) for at in partitions]
        try:
            answers = self._client.offsets_for_times(asked, timeout=_START_TIMEOUT_S)
        except KafkaException as raised:
            self._note(error_of(raised).str())
            answers = asked
        return [
            ClientPartition(at.topic, at.partition, at.offset if at.error is None and at.offset > 0 else 0)
            for at in answers
        ]

    def _on_revoke(self, _: Consumer, partitions: list[ClientPartition]) -> None:
        self._give_up(self._rebalance.on_revoke, partitions)

    def _on_lost(self, _: Consumer, partitions: list[ClientPartition]) -> None:
        self._give_up(self._rebalance.on_lost, partitions)

    def _give_up(self, tell: Callable[[Sequence[TopicPartition]], None], partitions: list[ClientPartition]) -> None:
        self._rebalances += 1
        self._tell(tell, _from_client(partitions))
        self._assigned, self._sought, self._ends = set(), {}, {}

    def _tell(self, call: Callable[[Sequence[TopicPartition]], None], partitions: Sequence[TopicPartition]) -> None:
        """Call the owner; what it raises travels out of `poll`, not through C."""
        try:
            call(partitions)
        except Exception as raised:
            self._raised = self._raised or raised

    def _raise_from_callback(self) -> None:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised


class KafkaReader:
    """A `streams.log.seam.PartitionReader` on Kafka."""

    def __init__(self, settings: KafkaSettings, *, isolation: Isolation, note: ErrorSink) -> None:
        self._polling = _Polling(settings.reader(f"read_{isolation}"), settings.bootstrap, note)
        self._positions: dict[TopicPartition, int] = {}
        self._closed = False

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these, from these offsets."""
        self._positions = dict(positions)
        self._polling.client.assign([ClientPartition(at.topic, at.partition, n) for at, n in positions.items()])

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Take what is there."""
        first = self._polling.first(timeout_s)
        if first is None:
            return []
        messages = [first, *self._polling.drain(records_max - 1)]
        ends: dict[TopicPartition, int] = {}
        records = self._polling.convert(messages, ends.__setitem__)
        self._positions.update({TopicPartition(r.topic, r.partition): r.offset + 1 for r in records})
        self._positions.update(ends)
        return records

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read."""
        return self._positions[partition]

    def close(self) -> None:
        """Free the client."""
        if not self._closed:
            self._closed = True
            self._polling.client.close()
