"""The broker in memory: partitions, groups and transactional ids, as far as the runtime depends on them (DESIGN 9).

`streams.log.memory.log` holds the clients and the faults; nothing outside it should need this module.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from schemas.errors import LogError, LogUnavailable, RecordTooLarge, TransactionAborted
from schemas.identity import murmur2
from schemas.limits import SESSION_TIMEOUT_MS
from schemas.topics import TopicSettings
from streams.clock import Clock, ManualClock
from streams.log.seam import Isolation, Record, TopicPartition

CommitFault = Literal["abort", "before", "after"]
"""How a commit goes wrong: refused; answer lost before it happened; answer lost after it happened."""

_TOPIC_BYTES_DEFAULT = 1_048_588
_DELETE_RETENTION_DEFAULT_MS = 86_400_000


class Partition:
    """Records of one partition: parallel lists by offset, with gaps where markers are and compaction was."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.offsets: list[int] = []
        self.start = 0
        self.end = 0
        self.open: dict[str, int] = {}  # transactional id -> first offset of its open transaction
        self.aborted: set[int] = set()

    def append(self, record: Record) -> None:
        """Add a record at the end."""
        self.records.append(record)
        self.offsets.append(record.offset)
        self.end += 1

    def stable(self) -> int:
        """The last stable offset: nothing of an open transaction is below it."""
        return min(self.open.values()) if self.open else self.end

    def limit(self, isolation: Isolation) -> int:
        """The end as a reader of this isolation sees it."""
        return self.end if isolation == "uncommitted" else self.stable()

    def read(self, position: int, records_max: int, isolation: Isolation) -> tuple[list[Record], int]:
        """Records from `position` on, and the next position (behind gaps and markers once the end is reached)."""
        end = self.limit(isolation)
        if position >= end:
            return [], position
        first = bisect_left(self.offsets, position)
        last = bisect_left(self.offsets, end, first)
        stop = min(last, first + records_max)
        found = self.records[first:stop]
        following = end if stop == last else self.offsets[stop]
        if self.aborted and isolation == "committed":
            found = [record for record in found if record.offset not in self.aborted]
        return found, following

    def keep(self, records: list[Record]) -> None:
        """Let only these records be left; offsets stay."""
        self.records = records
        self.offsets = [record.offset for record in records]
        self.aborted.intersection_update(self.offsets)


class MemoryTopic:
    """A topic and its partitions."""

    def __init__(self, spec: TopicSettings, topic_id: str) -> None:
        self.spec = spec
        self.topic_id = topic_id
        self.partitions = [Partition() for _ in range(spec.partitions)]
        self.compacted = "compact" in spec.config.get("cleanup.policy", "delete")
        self.stamps = spec.config.get("message.timestamp.type") == "LogAppendTime"
        """Records carry the broker's time, not their producer's."""
        self.record_bytes_max = int(spec.config.get("max.message.bytes", _TOPIC_BYTES_DEFAULT))


class Member:
    """A member of a group as the group knows it."""

    def __init__(self, member_id: str, instance: str | None, topics: Sequence[str]) -> None:
        self.member_id = member_id
        self.instance = instance
        self.topics = tuple(topics)
        self.joined = False  # has answered the rebalance that is being prepared
        self.closed_ms: int | None = None
        self.partitions: list[TopicPartition] = []


class Group:
    """Members of one group. `rebalancing` from a membership change until every member has joined again."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.generation = 0
        self.rebalancing = False
        self.committed: dict[TopicPartition, int] = {}
        self.pending: dict[str, dict[TopicPartition, int]] = {}  # transactional id -> offsets not committed yet

    def prepare(self) -> None:
        """Begin a rebalance: every member must join again."""
        self.rebalancing = True
        for member in self.members.values():
            member.joined = False

    def remove(self, member_id: str) -> None:
        """Take a member out, and its share from it."""
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance is not None and self.instances.get(member.instance) == member_id:
            del self.instances[member.instance]
        self.prepare()

    def expire_closed(self, now_ms: int) -> None:
        """A static member that stopped polling leaves when its session ends, not before."""
        for member in list(self.members.values()):
            if member.closed_ms is not None and now_ms - member.closed_ms >= SESSION_TIMEOUT_MS:
                self.remove(member.member_id)

    def complete(self, topics: Mapping[str, MemoryTopic]) -> bool:
        """Start the next generation once every member has joined."""
        if not self.rebalancing or not all(member.joined for member in self.members.values()):
            return False
        self.rebalancing = False
        self.generation += 1
        ordered = sorted(self.members.values(), key=lambda member: member.instance or member.member_id)
        for member in ordered:
            member.partitions = []
        for name in sorted({topic for member in ordered for topic in member.topics}):
            if name in topics:
                _assign_range(name, len(topics[name].partitions), [m for m in ordered if name in m.topics])
        return True


def _assign_range(topic: str, partitions: int, members: list[Member]) -> None:
    """Kafka's range assignor: co-partitioned topics give each member the same partition numbers."""
    each, more = divmod(partitions, len(members))
    first = 0
    for i, member in enumerate(members):
        last = first + each + (1 if i < more else 0)
        member.partitions.extend(TopicPartition(topic, p) for p in range(first, last))
        first = last


class Transaction:
    """An open transaction of one transactional id."""

    def __init__(self) -> None:
        self.written: list[tuple[Partition, int]] = []
        self.partitions: dict[TopicPartition, Partition] = {}
        self.offsets: dict[str, dict[TopicPartition, int]] = {}
        self.calls: list[tuple[Callable[[int], None], int]] = []
        self.failure: LogError | None = None


class Identity:
    """A transactional id as its coordinator knows it."""

    def __init__(self) -> None:
        self.epoch = 0
        self.open: Transaction | None = None


class Broker:
    """Topics, groups and transactional ids. Callers of its methods hold `changed`, the one lock of it all."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.waits = not isinstance(self.clock, ManualClock)
        self.changed = threading.Condition(threading.RLock())
        self.topics: dict[str, MemoryTopic] = {}
        self.groups: dict[str, Group] = {}
        self.identities: dict[str, Identity] = {}
        self.faults: list[tuple[CommitFault, str | None]] = []
        self.spared: set[str] = set()
        """Transactional ids that a fault which is for anybody is not for."""
        self.drawn = 0
        self.available = True

    def draw(self) -> int:
        """The next number of a sequence that never repeats."""
        self.drawn += 1
        return self.drawn

    def check_available(self) -> None:
        """Raise `LogUnavailable` while the broker is away."""
        if not self.available:
            msg = "the in-memory broker is away (set_available)"
            raise LogUnavailable(msg)

    def group(self, name: str) -> Group:
        """A group, made at its first use."""
        return self.groups.setdefault(name, Group(name))

    def partition(self, at: TopicPartition) -> Partition:
        """A partition; `LogUnavailable` when it is not there."""
        self.check_available()
        topic = self.topics.get(at.topic)
        if topic is None or not 0 <= at.partition < len(topic.partitions):
            msg = f"{at.topic}[{at.partition}] does not exist; create the topic first (`kawait topics`)"
            raise LogUnavailable(msg)
        return topic.partitions[at.partition]

    def choose(self, topic: MemoryTopic, key: bytes | None) -> int:
        """Java's partitioner; without a key, in turns."""
        number = self.draw() if key is None else murmur2(key) & 0x7FFFFFFF
        return number % len(topic.partitions)

    def refusal(self, topic: MemoryTopic, key: bytes | None, size: int) -> LogError | None:
        """Why the broker would not store a record."""
        name = topic.spec.name
        if size > topic.record_bytes_max:
            return RecordTooLarge(f"a record of {size} bytes for {name}, which takes {topic.record_bytes_max}")
        if topic.compacted and key is None:
            return TransactionAborted(f"a record without key for {name}, which is compacted")
        return None

    def compact(self, topic: MemoryTopic, kept: Partition) -> None:
        """Keep the last record of each key below the stable offset, and deletes that are young."""
        stable = kept.stable()
        last: dict[bytes | None, int] = {}
        for record in kept.records:
            if record.offset < stable and record.offset not in kept.aborted:
                last[record.key] = record.offset
        keep_ms = int(topic.spec.config.get("delete.retention.ms", _DELETE_RETENTION_DEFAULT_MS))
        oldest_ms = self.clock.now_ms() - keep_ms
        kept.keep(
            [
                record
                for record in kept.records
                if record.offset >= stable
                or (
                    last.get(record.key) == record.offset
                    and (record.value is not None or record.timestamp_ms > oldest_ms)
                )
            ]
        )

    def end(self, transactional_id: str, identity: Identity, *, committed: bool) -> None:
        """Write the control markers of an open transaction and settle its offsets."""
        open_, identity.open = identity.open, None
        if open_ is None:
            return
        for kept in open_.partitions.values():
            del kept.open[transactional_id]
            kept.end += 1
        if not committed:
            for kept, offset in open_.written:
                kept.aborted.add(offset)
        for name, offsets in open_.offsets.items():
            group = self.group(name)
            group.pending.pop(transactional_id, None)
            if committed:
                group.committed.update(offsets)
        self.changed.notify_all()

    def take_fault(self, transactional_id: str) -> CommitFault | None:
        """The fault that waits for a commit of this id, used up by asking."""
        for i, (kind, whose) in enumerate(self.faults):
            if whose == transactional_id or (whose is None and transactional_id not in self.spared):
                del self.faults[i]
                return kind
        return None

    def wait(self, timeout_s: float, found: Callable[[], list[Record]]) -> list[Record]:
        """Call `found` until it finds something or the time is over; holds the lock between calls, not while waiting."""
        records = found()
        if records or timeout_s <= 0 or not self.waits:
            return records
        end_s = self.clock.monotonic_s() + timeout_s
        while not records:
            left_s = end_s - self.clock.monotonic_s()
            if left_s <= 0 or not self.changed.wait(left_s):
                return found()
            records = found()
        return records
