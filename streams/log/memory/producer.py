"""Producers of the log in memory: transactional ones, and plain ones that write at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from schemas.errors import (
    CommitUnknown,
    LogUnavailable,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
)
from schemas.limits import RECORD_BYTES_MAX
from streams.clock import Clock
from streams.log.memory.broker import Broker, Identity, Transaction
from streams.log.memory.consumer import OUTSIDER, MemoryMetadata
from streams.log.seam import Record, TopicPartition

_NO_HEADERS: Sequence[tuple[str, bytes | None]] = ()


class MemoryProducer:
    """A `streams.log.seam.Producer` on a `MemoryLog`."""

    def __init__(self, broker: Broker, transactional_id: str, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._id = transactional_id
        self._epoch = -1
        self._lost = False  # a commit of unknown outcome: only a new producer finds out

    def init(self, timeout_s: float) -> None:
        """Take the transactional id."""
        del timeout_s
        broker = self._broker
        with broker.changed:
            broker.check_available()
            identity = broker.identities.setdefault(self._id, Identity())
            broker.end(self._id, identity, committed=False)
            identity.epoch += 1
            self._epoch = identity.epoch

    def _identity(self) -> Identity:
        """The id's state, if it is still ours."""
        identity = self._broker.identities.get(self._id)
        if identity is None or self._epoch < 0:
            msg = f"producer {self._id!r} must be initialised first"
            raise RuntimeError(msg)
        if identity.epoch != self._epoch or self._lost:
            msg = f"transactional id {self._id!r} belongs to a newer producer, or was timed out"
            raise ProducerFenced(msg)
        return identity

    def _open(self) -> Transaction:
        open_ = self._identity().open
        if open_ is None:
            msg = f"producer {self._id!r} has no open transaction"
            raise RuntimeError(msg)
        return open_

    def holds_id(self, topic: str, timeout_s: float) -> bool:
        """Whether no newer producer has taken the id."""
        del topic, timeout_s
        with self._broker.changed:
            identity = self._broker.identities.get(self._id)
            return identity is not None and identity.epoch == self._epoch and not self._lost

    def begin(self) -> None:
        """Open a transaction."""
        with self._broker.changed:
            identity = self._identity()
            if identity.open is not None:
                msg = f"producer {self._id!r} has an open transaction already"
                raise RuntimeError(msg)
            identity.open = Transaction()

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
        """Add one record; it takes its offset now and is visible to read_committed after the commit."""
        size = len(value or b"") + len(key or b"") + sum(len(n) + len(v) for n, v in headers or ())
        broker = self._broker
        with broker.changed:
            open_ = self._open()
            if size > RECORD_BYTES_MAX:
                open_.failure = RecordTooLarge(
                    f"a record of {size} bytes for {topic}; the client takes {RECORD_BYTES_MAX}"
                )
                raise open_.failure
            known = broker.topics.get(topic)
            if known is None or (partition is not None and not 0 <= partition < len(known.partitions)):
                open_.failure = TransactionAborted(f"{topic}[{partition}] does not exist")
                return
            refusal = broker.refusal(known, key, size)
            if refusal is not None:
                open_.failure = refusal
                return
            number = broker.choose(known, key) if partition is None else partition
            kept = known.partitions[number]
            offset = kept.end
            if self._id not in kept.open:
                kept.open[self._id] = offset
                open_.partitions[TopicPartition(topic, number)] = kept
            at_ms = broker.clock.now_ms() if known.stamps else self._clock.now_ms()
            kept.append(Record(topic, number, offset, at_ms, key, value, headers or _NO_HEADERS, known.stamps))
            open_.written.append((kept, offset))
            if on_offset is not None:
                open_.calls.append((on_offset, offset))

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: object) -> None:
        """Make consumed positions part of the transaction; an empty mapping does nothing and so fences nothing, as in Kafka."""
        with self._broker.changed:
            open_ = self._open()
            if not offsets:
                return
            assert isinstance(metadata, MemoryMetadata)
            if any(offset < 0 for offset in offsets.values()):
                msg = f"offsets must not be negative: {dict(offsets)}"
                raise ValueError(msg)
            group = self._broker.group(metadata.group)
            is_member = metadata.member_id in group.members and metadata.generation == group.generation
            if not is_member and metadata.member_id != OUTSIDER:
                msg = f"group {metadata.group!r} is in generation {group.generation}; these offsets are of {metadata}"
                open_.failure = TransactionAborted(msg)
                raise open_.failure
            open_.offsets.setdefault(metadata.group, {}).update(offsets)
            group.pending.setdefault(self._id, {}).update(offsets)

    def commit(self, timeout_s: float) -> None:
        """End the transaction."""
        del timeout_s
        broker = self._broker
        with broker.changed:
            try:
                open_ = self._open()
            except ProducerFenced as fenced:
                raise CommitUnknown(str(fenced), fenced=True) from fenced
            for call, offset in open_.calls:
                call(offset)
            open_.calls = []
            if open_.failure is not None:
                raise open_.failure
            fault = broker.take_fault(self._id)
            if fault == "abort":
                open_.failure = TransactionAborted(f"the commit of {self._id!r} was refused")
                raise open_.failure
            if fault is not None:
                self._lost = True
            if fault != "before":
                broker.end(self._id, self._broker.identities[self._id], committed=True)
            if fault is not None:
                msg = f"the answer to the commit of {self._id!r} was lost"
                raise CommitUnknown(msg)

    def abort(self) -> None:
        """Drop the open transaction; does nothing when none is open or it is not ours any more."""
        with self._broker.changed:
            identity = self._broker.identities.get(self._id)
            if identity is None or identity.epoch != self._epoch or self._lost:
                return
            self._broker.end(self._id, identity, committed=False)

    def close(self) -> None:
        """Abort what is open."""
        self.abort()
        self._lost = True


class MemoryPlainProducer:
    """A `streams.log.seam.PlainProducer` on a `MemoryLog`."""

    def __init__(self, broker: Broker, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        timeout_s: float = 10.0,
    ) -> int | None:
        """Write one record. Returns when the broker appended it, where the topic says so."""
        del timeout_s
        broker = self._broker
        with broker.changed:
            broker.check_available()
            known = broker.topics.get(topic)
            if known is None:
                msg = f"topic {topic!r} does not exist; create it first (`kawait topics`)"
                raise LogUnavailable(msg)
            refusal = broker.refusal(known, key, len(value or b"") + len(key or b""))
            if refusal is not None:
                raise refusal
            number = broker.choose(known, key) if partition is None else partition
            kept = broker.partition(TopicPartition(topic, number))
            at_ms = broker.clock.now_ms() if known.stamps else self._clock.now_ms()
            kept.append(Record(topic, number, kept.end, at_ms, key, value, headers or _NO_HEADERS, known.stamps))
            broker.changed.notify_all()
            return at_ms if known.stamps else None

    def close(self) -> None:
        """Nothing to free."""
