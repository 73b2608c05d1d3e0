"""A broker in memory, with Kafka's transactions, groups and compaction (DESIGN 9): demo, test driver and simulator run on it.

What it keeps of Kafka, because the runtime depends on it: a record takes its offset when it is produced, a commit or an abort adds a
control marker that takes one too, an open transaction holds the last stable offset, a transactional id has an epoch, a group has
generations that fence, a static member is replaced by the newest process. It loses everything on exit.

Nothing runs by itself: a rebalance happens inside the `poll` of its members, so one thread and a `ManualClock` make every run the same.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from schemas.errors import LogUnavailable
from schemas.topics import TopicSettings
from streams.clock import Clock, SystemClock
from streams.log.memory.broker import Broker, CommitFault, MemoryTopic
from streams.log.memory.consumer import MemoryGroupConsumer, MemoryReader, outside
from streams.log.memory.producer import MemoryPlainProducer, MemoryProducer
from streams.log.seam import Isolation, Rebalance, TopicPartition, TopicState


class MemoryLog:
    """The broker. Safe to use from several threads; `poll` waits for records unless the clock is a `ManualClock`.

    Args:
        clock: Of the producers, which stamp records of topics with CreateTime.
        brokers: Of the broker; default: the same.
    """

    name = "memory"
    clocks_apart_ms = 0

    def __init__(self, clock: Clock | None = None, *, brokers: Clock | None = None) -> None:
        self.clock: Clock = clock or SystemClock()
        self._broker = Broker(brokers or self.clock)

    def seen_from(self, clock: Clock) -> MemoryLog:
        """The same broker, as the clients of another machine meet it, whose clock is `clock`."""
        seen = MemoryLog(clock)
        seen._broker = self._broker
        return seen

    # The seam.

    def group_consumer(
        self, *, group: str, instance: str | None, topics: Sequence[str], rebalance: Rebalance
    ) -> MemoryGroupConsumer:
        """Join a group, at the first poll."""
        return MemoryGroupConsumer(self._broker, group, instance, topics, rebalance)

    def producer(self, transactional_id: str) -> MemoryProducer:
        """Make a transactional producer."""
        return MemoryProducer(self._broker, transactional_id, self.clock)

    def plain_producer(self) -> MemoryPlainProducer:
        """Make a producer for single records."""
        return MemoryPlainProducer(self._broker, self.clock)

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

    def group_offsets(
        self, group: str, partitions: Sequence[TopicPartition], timeout_s: float, *, stable: bool = False
    ) -> dict[TopicPartition, int | None]:
        """What any group has committed; `stable` is refused while a transaction is pending."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            found = self._broker.group(group)
            if stable and any(not offsets.keys().isdisjoint(partitions) for offsets in found.pending.values()):
                raise LogUnavailable(f"offsets of group {group!r} wait for an open transaction")
            committed = found.committed
            return {at: committed.get(at) for at in partitions}

    def outsider(self, group: str) -> object:
        """The metadata of nobody: the broker takes its offsets in a transaction, whoever the members are."""
        return outside(group)

    def has_member(self, group: str, instance: str, timeout_s: float) -> bool:
        """Whether the group has a static member of this name."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            found = self._broker.group(group)
            found.expire_closed(self._broker.clock.now_ms())
            return instance in found.instances

    def assigned(self, group: str, timeout_s: float) -> set[TopicPartition] | None:
        """What the members of a group read, all together; None while they are sharing out."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            found = self._broker.group(group)
            if found.rebalancing:
                return None
            return {at for member in found.members.values() for at in member.partitions}

    def topics(self, names: Sequence[str], timeout_s: float) -> dict[str, TopicState]:
        """State of those of `names` that exist."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            known = [self._broker.topics[name] for name in names if name in self._broker.topics]
            return {
                t.spec.name: TopicState(t.spec.name, t.topic_id, t.spec.partitions, dict(t.spec.config)) for t in known
            }

    def create_topics(self, specs: Sequence[TopicSettings], timeout_s: float) -> None:
        """Create topics; one that exists already is left as it is."""
        del timeout_s
        with self._broker.changed:
            self._broker.check_available()
            for spec in specs:
                if spec.name not in self._broker.topics:
                    self._broker.topics[spec.name] = MemoryTopic(spec, f"memory-{self._broker.draw()}")
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

    def spare(self, transactional_id: str) -> None:
        """Let no fault that is for any producer meet this one: it is not what is tested."""
        with self._broker.changed:
            self._broker.spared.add(transactional_id)

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
