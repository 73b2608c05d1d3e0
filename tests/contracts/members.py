"""What the contract tests share: a bench that makes clients, and a group member that remembers what it was told."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from schemas.topics import TopicSettings
from streams.log.seam import (
    GroupConsumer,
    Isolation,
    Log,
    PartitionReader,
    Producer,
    Record,
    TopicPartition,
)

PATIENCE_S = 60.0
"""A wait that should take a moment; so long only on a machine that is very busy."""


def wait_until(done: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> None:
    """Call `done` until it is true."""
    end_s = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < end_s, f"not within {patience_s:g} s: {what}"
        time.sleep(0.01)


class Member:
    """A group member as a task loop would be one: it takes over from committed offsets, or the log start."""

    def __init__(self, log: Log, group: str, topics: Sequence[str], instance: str | None) -> None:
        self.told: list[tuple[str, list[TopicPartition]]] = []
        self.mine: list[TopicPartition] = []
        self.metadata: object = None
        self.records: list[Record] = []
        self.starts = True
        self._log = log
        self.consumer: GroupConsumer = log.group_consumer(group=group, instance=instance, topics=topics, rebalance=self)

    def on_assign(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("assign", sorted(partitions)))
        self.mine = sorted(partitions)
        self.metadata = self.consumer.metadata()
        if self.starts:
            self.start()

    def on_revoke(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("revoke", sorted(partitions)))
        self.mine = []

    def on_lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.told.append(("lost", sorted(partitions)))
        self.mine = []

    def start(self) -> None:
        committed = self.consumer.committed(self.mine, 5)
        first = self._log.start_offsets(self.mine, 5)
        for at in self.mine:
            offset = committed[at]
            self.consumer.seek(at, first[at] if offset is None else offset)
        self.consumer.resume(self.mine)

    def poll(self, timeout_s: float = 0.05) -> list[Record]:
        found = self.consumer.poll(1000, timeout_s)
        self.records += found
        return found

    def owns(self, partitions: Sequence[TopicPartition]) -> bool:
        self.poll()
        return self.mine == sorted(partitions)

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records]


class Bench:
    """Makes topics and clients under names of its own."""

    def __init__(self, log: Log, mark: str) -> None:
        self.log = log
        self._mark = mark
        self._close: list[Callable[[], None]] = []

    def name(self, word: str) -> str:
        return f"contract-{self._mark}-{word}"

    def topic(self, word: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        name = self.name(word)
        self.log.create_topics([TopicSettings(name, partitions, 1, config or {})], 20)
        return name

    def producer(self, word: str = "p") -> Producer:
        made = self.log.producer(self.name(word))
        self._close.append(made.close)
        made.init(20)
        return made

    def write(self, topic: str, values: Sequence[bytes | None], partition: int = 0, word: str = "writer") -> None:
        """Commit `values` in one transaction, each with its value as key."""
        producer = self.log.producer(self.name(word))
        producer.init(20)
        producer.begin()
        for value in values:
            producer.produce(topic, value, key=value, partition=partition)
        producer.commit(20)
        producer.close()

    def member(self, topics: Sequence[str], group: str = "g", instance: str | None = None) -> Member:
        made = Member(self.log, self.name(group), topics, instance)
        self._close.append(made.consumer.close)
        return made

    def reader(self, positions: Mapping[TopicPartition, int], isolation: Isolation = "committed") -> PartitionReader:
        made = self.log.reader(isolation=isolation)
        self._close.append(made.close)
        made.assign(positions)
        return made

    def read_to(self, reader: PartitionReader, at: TopicPartition, end: int) -> list[Record]:
        """Everything up to `end`, by position."""
        found: list[Record] = []

        def done() -> bool:
            found.extend(reader.poll(1000, 0.05))
            return reader.position(at) >= end

        wait_until(done, f"position {end} of {at}")
        return found

    def end(self, at: TopicPartition, isolation: Isolation = "uncommitted") -> int:
        return self.log.end_offsets([at], isolation, 10)[at]

    def close(self) -> None:
        for close in reversed(self._close):
            close()
