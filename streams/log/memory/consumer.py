"""Consumers of the log in memory: group members and plain readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from schemas.errors import (
    InstanceFenced,
    LogUnavailable,
    OffsetOutOfRange,
)
from streams.log.memory.broker import Broker, Group, Member
from streams.log.seam import Isolation, Rebalance, Record, TopicPartition


class MemoryMetadata(NamedTuple):
    """A membership as of one generation; what `send_offsets` is fenced by."""

    group: str
    member_id: str
    generation: int


OUTSIDER = "outsider"
"""Stands for the member id of nobody."""


def outside(group: str) -> MemoryMetadata:
    """What nobody's offsets are sent with."""
    return MemoryMetadata(group, OUTSIDER, -1)


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

    def rejoin(self) -> None:
        """Join the group once more."""
        with self._broker.changed:
            self._broker.group(self.group).prepare()
            self._broker.changed.notify_all()

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
