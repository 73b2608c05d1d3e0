"""Whose time a stamp is, what a group has committed, and positions past markers, on both logs (DECISIONS 6)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from schemas.errors import LogUnavailable
from streams.clock import SystemClock
from streams.engine.loop import TransactionalLoop
from streams.engine.role import Role
from streams.engine.stateless import StatelessTask
from streams.engine.task import Entry, Outputs, Positions, Task
from streams.log.seam import Log, Record, TopicPartition
from streams.telemetry.metrics import Metrics
from tests.contracts.members import Bench, wait_until

APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


@pytest.mark.parametrize(("config", "appended"), [(APPEND_TIME, True), ({}, False)], ids=["append time", "create time"])
def test_a_record_says_whether_its_stamp_is_the_brokers(
    log: Log, bench: Bench, config: dict[str, str], appended: bool
) -> None:
    at = TopicPartition(bench.topic("t", config=config), 0)
    bench.write(at.topic, [b"in a transaction"])
    log.plain_producer().send(at.topic, b"alone", partition=0, timeout_s=10)
    records = bench.read_to(bench.reader({at: 0}), at, 3)
    assert [record.appended for record in records] == [appended, appended]


def test_a_sender_hears_when_the_broker_appended(log: Log, bench: Bench) -> None:
    """The delivery report carries the stamp that readers see: the broker's time can be asked for by writing a record."""
    at = TopicPartition(bench.topic("t", config=APPEND_TIME), 0)
    producer = log.plain_producer()
    told = [producer.send(at.topic, b"", partition=0, headers=[("a", b"1")], timeout_s=10) for _ in range(3)]
    records = bench.read_to(bench.reader({at: 0}), at, 3)
    assert [record.timestamp_ms for record in records] == told
    assert all(abs((stamp or 0) - time.time_ns() // 1_000_000) < 60_000 for stamp in told)
    producer.close()


def test_a_sender_hears_nothing_where_its_own_time_is_kept(log: Log, bench: Bench) -> None:
    producer = log.plain_producer()
    assert producer.send(bench.topic("t"), b"v", partition=0, timeout_s=10) is None
    producer.close()


# --- what a group has committed --------------------------------------------------------------------------------------------------------


def test_anybody_may_ask_what_a_group_has_committed(log: Log, bench: Bench) -> None:
    at, other = (TopicPartition(bench.topic("t", 2), number) for number in range(2))
    group = bench.name("g")
    assert log.group_offsets(group, [at, other], 10) == {at: None, other: None}
    assert log.group_offsets(group, [], 10) == {}
    bench.write(at.topic, [b"1", b"2"])
    member = bench.member([at.topic])
    wait_until(lambda: member.poll() or member.records, "the records")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({at: 2}, member.metadata)
    producer.commit(10)
    wait_until(lambda: log.group_offsets(group, [at, other], 10) == {at: 2, other: None}, "the marker of the commit")


def test_offsets_of_an_open_transaction_do_not_count_and_are_not_waited_for(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1", b"2"])
    member = bench.member([at.topic])
    wait_until(lambda: member.poll() or member.records, "the records")
    producer = bench.producer()
    for offset in (1, 2):
        producer.begin()
        producer.send_offsets({at: offset}, member.metadata)
        if offset == 1:
            producer.commit(10)
    began_s = time.monotonic()
    assert log.group_offsets(bench.name("g"), [at], 10) == {at: 1}
    assert time.monotonic() - began_s < 5
    getattr(producer, "_join_sending", lambda: None)()  # on Kafka they are on their way while records are written
    with pytest.raises(LogUnavailable):  # never by the admin client: measured, its call may end the process
        log.group_offsets(bench.name("g"), [at], 0.5, stable=True)
    producer.commit(10)
    wait_until(lambda: log.group_offsets(bench.name("g"), [at], 10) == {at: 2}, "the commit")


# --- positions that no record moves ------------------------------------------------------------------------------------------------------


class Swallow(StatelessTask):
    """Takes records and writes nothing."""

    def accept(self, records: Sequence[Record]) -> None:
        self.ready += [Entry(self, record, record) for record in records]

    def decide(self, entry: Entry, outputs: Outputs) -> None:
        pass

    def quarantine(self, entry: Entry, error: Exception, outputs: Outputs) -> None:
        raise AssertionError(entry) from error


@contextmanager
def reading(log: Log, bench: Bench, topic: str) -> Iterator[TransactionalLoop]:
    """A role that reads a topic."""
    metrics = Metrics()

    def make_task(partition: int, inputs: tuple[TopicPartition, ...], positions: Positions) -> Task:
        del partition, positions
        return Swallow(inputs, metrics)

    role = Role(
        name="swallow",
        group=bench.name("g"),
        instance=None,
        transactional_id=bench.name("id"),
        topics=(topic,),
        own_topic=topic,
        co_partitioned=False,
    )
    loop = TransactionalLoop(role, log=log, make_task=make_task, clock=SystemClock(), metrics=metrics, pace_s=0.05)
    try:
        yield loop
    finally:
        loop.close()


def committed(log: Log, bench: Bench, at: TopicPartition) -> int | None:
    return log.group_offsets(bench.name("g"), [at], 10)[at]


def reaches_end(log: Log, bench: Bench, at: TopicPartition, loop: TransactionalLoop) -> None:
    end = bench.end(at)

    def is_at_end() -> bool:
        loop.step()
        return loop.is_ready and (committed(log, bench, at) or 0) >= end

    wait_until(is_at_end, f"position {end} committed")


def commit_two(bench: Bench, at: TopicPartition) -> None:
    bench.write(at.topic, [b"1", b"2"])


def abort_one_more(bench: Bench, at: TopicPartition) -> None:
    bench.write(at.topic, [b"1"])
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, b"given up", partition=0)
    wait_until(lambda: bench.end(at) >= 3, "the record has an offset")
    producer.abort()
    wait_until(lambda: bench.end(at) == bench.end(at, "committed") == 4, "the marker")


def abort_alone(bench: Bench, at: TopicPartition) -> None:
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, b"given up", partition=0)
    wait_until(lambda: bench.end(at) >= 1, "the record has an offset")
    producer.abort()
    wait_until(lambda: bench.end(at, "committed") == 2, "the marker")


def nothing(_bench: Bench, _at: TopicPartition) -> None:
    pass


@pytest.mark.parametrize("fill", [commit_two, abort_one_more, abort_alone, nothing], ids=lambda fill: fill.__name__)
def test_a_reader_at_the_end_has_committed_the_end(
    log: Log, bench: Bench, fill: Callable[[Bench, TopicPartition], None]
) -> None:
    """Past control markers and aborted records: so whoever asks sees that everything was taken over. A later record is read all the same."""
    at = TopicPartition(bench.topic("t"), 0)
    fill(bench, at)
    with reading(log, bench, at.topic) as loop:
        reaches_end(log, bench, at, loop)
        bench.write(at.topic, [b"later"])
        reaches_end(log, bench, at, loop)


@pytest.mark.parametrize("fill", [commit_two, abort_one_more, abort_alone, nothing], ids=lambda fill: fill.__name__)
def test_a_reader_starts_again_on_a_topic_that_retention_has_emptied(
    log: Log, bench: Bench, trim: Callable[[TopicPartition, int], None], fill: Callable[[Bench, TopicPartition], None]
) -> None:
    """Its last marker goes with the records: a position before it would look like work that was deleted unread."""
    at = TopicPartition(bench.topic("t"), 0)
    fill(bench, at)
    with reading(log, bench, at.topic) as loop:
        reaches_end(log, bench, at, loop)
    end = bench.end(at)
    if end:
        trim(at, end)
    assert log.start_offsets([at], 10) == {at: end}
    with reading(log, bench, at.topic) as loop:
        reaches_end(log, bench, at, loop)
        bench.write(at.topic, [b"later"])
        reaches_end(log, bench, at, loop)


def test_a_topic_that_retention_emptied_before_anybody_read_it_counts_as_taken_over(
    log: Log, bench: Bench, trim: Callable[[TopicPartition, int], None]
) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    commit_two(bench, at)
    trim(at, bench.end(at))
    with reading(log, bench, at.topic) as loop:
        wait_until(lambda: loop.step() or loop.is_ready, "the role is ready")
        wait_until(lambda: loop.step() or loop.positions.get(at) == bench.end(at), "its position")
