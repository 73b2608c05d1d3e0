"""A broker in memory, with Kafka's transactions, groups and compaction (DESIGN 9): demo, test driver and simulator run on it.

What it keeps of Kafka, because the runtime depends on it: a record takes its offset when it is produced, a commit or an abort adds a
control marker that takes one too, an open transaction holds the last stable offset, a transactional id has an epoch, a group has
generations that fence, a static member is replaced by the newest process. It loses everything on exit.

Nothing runs by itself: a rebalance happens inside the `poll` of its members, so one thread and a `ManualClock` make every run the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from schemas.errors import (
    CommitUnknown,
    InstanceFenced,
    LogUnavailable,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
)
from schemas.limits import RECORD_BYTES_MAX
from streams.clock import Clock, SystemClock
from streams.log.memory.broker import Broker, CommitFault, Group, Identity, Member, Topic, Transaction
from streams.log.seam import Isolation, Rebalance, Record, TopicPartition, TopicSpec, TopicState

_NO_HEADERS: Sequence[tuple[str, bytes | None]] = ()


class MemoryMetadata(NamedTuple):
    """A membership as of one generation; what `send_offsets` is fenced by."""

    group: str
    member_id: str
    generation: int


class MemoryLog:
    """The broker. Safe to use from several threads; `poll` waits for records unless the clock is a `ManualClock`."""

    name = "memory"

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._broker = Broker(self.clock)

    # The seam.

    def group_consumer(
        self, *, group: str, instance: str | None, topics: Sequence[str], rebalance: Rebalance
    ) -> MemoryGroupConsumer:
        """Join a group, at the first poll."""
        return MemoryGroupConsumer(self._broker, group, instance, topics, rebalance)

    def producer(self, transactional_id: str) -> MemoryProducer:
        """Make a transactional producer."""
        return MemoryProducer(self._broker, transactional_id)

    def plain_producer(self) -> MemoryPlainProducer:
        """Make a producer for single records."""
        return MemoryPlainProducer(self._broker)

    def reader(self, *, isolation: Isolation = "committed") -> MemoryReader:
        """Make a groupless reader."""
        return MemoryReader(self._broker, isolation)

    def start_offsets(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """First offset still kept, per partition."""
        del timeout_s
        with self._broker.changed:
            return {at: self._broker.partition(at).start for at in partitions}

    def end_offsets(
        self, partitions: Sequence[TopicPartition], isolation: Isolation, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """The high watermark or the last stable offset, per partition."""
        del timeout_s
        with self._broker.changed:
            return {at: self._broker.partition(at).limit(isolation) for at in partitions}

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """First offset whose timestamp is at or after `timestamp_ms`; the end when there is none."""
        del timeout_s
        with self._broker.changed:
            found = {}
            for at in partitions:
                kept = self._broker.partition(at)
                later = (record.offset for record in kept.records if record.timestamp_ms >= timestamp_ms)
                found[at] = next(later, kept.end)
            return found

    def has_member(self, group: str, instance: str, timeout_s: float) -> bool:
        """Whether the group has a static member of this name."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            found = self._broker.group(group)
            found.expire_closed(self.clock.now_ms())
            return instance in found.instances

    def topics(self, names: Sequence[str], timeout_s: float) -> dict[str, TopicState]:
        """State of those of `names` that exist."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            known = [self._broker.topics[name] for name in names if name in self._broker.topics]
            return {
                t.spec.name: TopicState(t.spec.name, t.topic_id, t.spec.partitions, dict(t.spec.config)) for t in known
            }

    def create_topics(self, specs: Sequence[TopicSpec], timeout_s: float) -> None:
        """Create topics; one that exists already is left as it is."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            for spec in specs:
                if spec.name not in self._broker.topics:
                    self._broker.topics[spec.name] = Topic(spec, f"memory-{self._broker.draw()}")
            self._broker.changed.notify_all()

    def close(self) -> None:
        """Nothing to free: the records live as long as this object."""

    # What only a broker in memory offers: operations and faults as inputs.

    def delete_topic(self, name: str) -> None:
        """Delete a topic; made again it has another id and starts at offset 0. Committed offsets stay, as in Kafka."""
        with self._broker.changed:
            self._broker.topics.pop(name)

    def trim(self, partition: TopicPartition, before: int) -> None:
        """Drop records below `before`, as retention does; never beyond the last stable offset."""
        with self._broker.changed:
            kept = self._broker.partition(partition)
            kept.start = max(kept.start, min(before, kept.stable()))
            kept.keep(kept.records[bisect_left(kept.offsets, kept.start) :])

    def compact(self, topic: str | None = None) -> None:
        """Compact one topic or all: the last record of each key stays; a delete stays for `delete.retention.ms`."""
        with self._broker.changed:
            for name, known in self._broker.topics.items():
                if known.compacted and topic in (None, name):
                    for kept in known.partitions:
                        self._broker.compact(known, kept)

    def set_available(self, *, available: bool) -> None:
        """Let the broker go away (every call that needs it raises `LogUnavailable`) or come back."""
        with self._broker.changed:
            self._broker.available = available
            self._broker.changed.notify_all()

    def fail_next_commit(self, kind: CommitFault, transactional_id: str | None = None) -> None:
        """Let the next commit (of one producer, or of any) go wrong. Faults queue up, each is used once."""
        with self._broker.changed:
            self._broker.faults.append((kind, transactional_id))

    def expire_transaction(self, transactional_id: str) -> None:
        """The coordinator times the open transaction out: it aborts and its producer is fenced."""
        with self._broker.changed:
            identity = self._broker.identities.get(transactional_id)
            if identity is not None and identity.open is not None:
                self._broker.end(transactional_id, identity, committed=False)
                identity.epoch += 1

    def kick(self, member: MemoryGroupConsumer) -> None:
        """The member's session ends: `on_lost` at its next poll, and the others share its partitions."""
        with self._broker.changed:
            group = self._broker.group(member.group)
            group.remove(member.member_id)
            group.complete(self._broker.topics)
            self._broker.changed.notify_all()


class Cursors:
    """Positions in partitions, read in turns so that none starves."""

    def __init__(self, broker: Broker, isolation: Isolation) -> None:
        self._broker = broker
        self._isolation: Isolation = isolation
        self.positions: dict[TopicPartition, int | None] = {}
        self.paused: set[TopicPartition] = set()
        self._turn = 0

    def read(self, records_max: int) -> list[Record]:
        """Take up to `records_max` records, the partitions in turns."""
        active = [at for at in self.positions if at not in self.paused] if self.paused else list(self.positions)
        found: list[Record] = []
        self._turn += 1
        for i in range(len(active)):
            at = active[(i + self._turn) % len(active)]
            room = records_max - len(found)
            if room <= 0:
                break
            found += self._read_one(at, room)
        return found

    def _read_one(self, at: TopicPartition, room: int) -> list[Record]:
        kept = self._broker.partition(at)
        position = self.positions[at]
        if position is None or not kept.start <= position <= kept.end:
            msg = f"{at.topic}[{at.partition}] has offsets {kept.start} to {kept.end}; the position is {position}"
            raise OffsetOutOfRange(msg)
        found, following = kept.read(position, room, self._isolation)
        while not found and following > position:  # only markers, gaps or aborted records so far
            position = following
            found, following = kept.read(position, room, self._isolation)
        self.positions[at] = following
        return found


class MemoryGroupConsumer:
    """A `streams.log.seam.GroupConsumer` on a `MemoryLog`."""

    def __init__(
        self, broker: Broker, group: str, instance: str | None, topics: Sequence[str], rebalance: Rebalance
    ) -> None:
        self.group = group
        self._broker = broker
        self._rebalance = rebalance
        self._topics = topics
        self._instance = instance
        self._cursors = Cursors(broker, "committed")
        self._generation = -1
        self._closed = False
        self.member_id = ""

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Take part in the group, then take what is there."""
        broker = self._broker
        end_s = broker.clock.monotonic_s() + timeout_s
        while True:
            self._follow_group()
            with broker.changed:
                group, generation = broker.group(self.group), self._generation

                def found(group: Group = group, generation: int = generation) -> list[Record]:
                    broker.check_available()
                    if self._is_stale(group, generation):
                        return []
                    return self._cursors.read(records_max)

                records = broker.wait(0, found)
                left_s = end_s - broker.clock.monotonic_s()
                if records or left_s <= 0 or not broker.waits:
                    return records
                if not self._is_stale(group, generation):
                    broker.changed.wait(min(left_s, 1.0))

    def _is_stale(self, group: Group, generation: int) -> bool:
        """Whether the group wants something of this member."""
        member = group.members.get(self.member_id)
        return member is None or (group.rebalancing and not member.joined) or group.generation != generation

    def _follow_group(self) -> None:
        """Do what the group wants: join, give partitions up, take partitions over. Callbacks run without the lock."""
        broker = self._broker
        with broker.changed:
            broker.check_available()
            if self._closed:
                msg = "the consumer is closed"
                raise RuntimeError(msg)
            group = broker.group(self.group)
            group.expire_closed(broker.clock.now_ms())
            lost = self.member_id != "" and self.member_id not in group.members
            if lost and self._instance is not None and self._instance in group.instances:
                msg = f"instance {self._instance!r} of group {self.group!r} belongs to a newer process"
                self._forget()
                raise InstanceFenced(msg)
        if lost:
            self._give_up(self._rebalance.on_lost)
        with broker.changed:
            if self.member_id not in group.members:
                self._join(group)
            member = group.members[self.member_id]
            joining = group.rebalancing and not member.joined
        if joining:
            self._give_up(self._rebalance.on_revoke)
            with broker.changed:
                member.joined = True
                group.complete(broker.topics)
                broker.changed.notify_all()
        self._take_over(group)

    def _join(self, group: Group) -> None:
        """Become a member; a static one steps into the place of the process before it, without a rebalance."""
        broker = self._broker
        self.member_id = f"{self._instance or 'member'}-{broker.draw():06d}"
        self._generation = -1
        member = Member(self.member_id, self._instance, self._topics)
        before = group.instances.get(self._instance) if self._instance is not None else None
        if self._instance is not None:
            group.instances[self._instance] = self.member_id
        if before is None:
            group.members[self.member_id] = member
            group.prepare()
            return
        old = group.members.pop(before)
        group.members[self.member_id] = member
        if old.topics != member.topics or group.rebalancing:
            group.prepare()
            return
        member.partitions, member.joined = old.partitions, True

    def _take_over(self, group: Group) -> None:
        broker = self._broker
        with broker.changed:
            member = group.members.get(self.member_id)
            if member is None or group.rebalancing or group.generation == self._generation:
                return
            self._generation = group.generation
            mine = list(member.partitions)
            self._cursors.positions = {at: group.committed.get(at) for at in mine}
            self._cursors.paused = set(mine)
        self._rebalance.on_assign(mine)

    def _give_up(self, tell: Callable[[Sequence[TopicPartition]], None]) -> None:
        mine = list(self._cursors.positions)
        if mine or self._generation >= 0:
            self._forget()
            tell(mine)

    def _forget(self) -> None:
        self._cursors.positions, self._cursors.paused = {}, set()
        self._generation = -1

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading from these."""
        self._cursors.paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Read from these again."""
        self._cursors.paused.difference_update(partitions)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Make `offset` the next one read."""
        if partition not in self._cursors.positions:
            msg = f"{partition.topic}[{partition.partition}] is not assigned"
            raise ValueError(msg)
        self._cursors.positions[partition] = offset

    def committed(self, partitions: Sequence[TopicPartition], timeout_s: float) -> dict[TopicPartition, int | None]:
        """Committed offsets; raises while a transaction that moves them is open."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            group = self._broker.group(self.group)
            for transactional_id, offsets in group.pending.items():
                if not offsets.keys().isdisjoint(partitions):
                    msg = f"offsets of group {self.group!r} wait for the open transaction of {transactional_id!r}"
                    raise LogUnavailable(msg)
            return {at: group.committed.get(at) for at in partitions}

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read, past control markers once the end was seen."""
        position = self._cursors.positions.get(partition)
        if position is None:
            msg = f"{partition.topic}[{partition.partition}] has no position yet; seek first"
            raise ValueError(msg)
        return position

    def metadata(self) -> MemoryMetadata:
        """The membership as of the generation this member follows."""
        return MemoryMetadata(self.group, self.member_id, self._generation)

    def close(self) -> None:
        """Revoke and leave; a static member only stops polling and leaves when its session ends."""
        if self._closed:
            return
        broker = self._broker
        with broker.changed:
            group = broker.group(self.group)
            member = group.members.get(self.member_id)
        self._give_up(self._rebalance.on_revoke if member is not None else self._rebalance.on_lost)
        with broker.changed:
            self._closed = True
            if member is not None and self._instance is None:
                group.remove(self.member_id)
                group.complete(broker.topics)
            elif member is not None:
                member.closed_ms = broker.clock.now_ms()
                member.joined = True  # a rebalance waits for its session only
            broker.changed.notify_all()


class MemoryReader:
    """A `streams.log.seam.PartitionReader` on a `MemoryLog`."""

    def __init__(self, broker: Broker, isolation: Isolation) -> None:
        self._broker = broker
        self._cursors = Cursors(broker, isolation)

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these, from these offsets."""
        self._cursors.positions = dict(positions)

    def poll(self, records_max: int, timeout_s: float) -> list[Record]:
        """Take what is there."""
        with self._broker.changed:
            return self._broker.wait(timeout_s, lambda: self._cursors.read(records_max))

    def position(self, partition: TopicPartition) -> int:
        """The next offset to read."""
        position = self._cursors.positions[partition]
        assert position is not None
        return position

    def close(self) -> None:
        """Nothing to free."""
        self._cursors.positions = {}


class MemoryProducer:
    """A `streams.log.seam.Producer` on a `MemoryLog`."""

    def __init__(self, broker: Broker, transactional_id: str) -> None:
        self._broker = broker
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
            kept.append(Record(topic, number, offset, broker.clock.now_ms(), key, value, headers or _NO_HEADERS))
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
            if metadata.member_id not in group.members or metadata.generation != group.generation:
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        """Write one record."""
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
            kept.append(Record(topic, number, kept.end, broker.clock.now_ms(), key, value, headers or _NO_HEADERS))
            broker.changed.notify_all()

    def close(self) -> None:
        """Nothing to free."""
