"""The traps of DESIGN 6 that were measured (M) on librdkafka and a real Kafka: each shown, and our log layer coping with it."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from schemas.errors import (
    CommitUnknown,
    LogUnavailable,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
)
from schemas.limits import TRANSACTION_TIMEOUT_MS
from streams.log.kafka.log import KafkaLog
from streams.log.seam import Record, TopicPartition
from tests.contracts.members import Bench, wait_until

pytestmark = pytest.mark.broker

DIES_IN_TRANSACTION = """
import os, sys
from streams.log.kafka import settings
from streams.log.kafka.log import KafkaLog
bootstrap, topic, name, timeout_ms = sys.argv[1:]
settings._TRANSACTIONAL["transaction.timeout.ms"] = int(timeout_ms)
producer = KafkaLog(bootstrap).producer(name)
producer.init(20)
producer.begin()
producer.produce(topic, b"unfinished", partition=0)
producer._client.flush(10)
os._exit(9)
"""


@pytest.fixture
def log(bootstrap: str) -> KafkaLog:
    return KafkaLog(bootstrap)


@pytest.fixture
def bench(log: KafkaLog) -> Iterator[Bench]:
    made = Bench(log, uuid.uuid4().hex[:8])
    yield made
    made.close()


def die_in_transaction(bootstrap: str, topic: str, name: str, timeout_ms: int = TRANSACTION_TIMEOUT_MS) -> None:
    """Another process writes a record and dies before it commits; the broker ends its transaction after `timeout_ms`."""
    command = [sys.executable, "-c", DIES_IN_TRANSACTION, bootstrap, topic, name, str(timeout_ms)]
    root = Path(__file__).resolve().parents[2]
    assert subprocess.run(command, cwd=root, check=False, timeout=60).returncode == 9


def test_a_poll_does_not_wait_for_a_full_batch(log: KafkaLog, bench: Bench, bootstrap: str) -> None:
    """The client's `consume(n, timeout)` waits for n records or the whole timeout."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1", b"2", b"3"])
    raw = Consumer({"bootstrap.servers": bootstrap, "group.id": bench.name("raw")})
    raw.assign([ClientPartition(at.topic, 0, 0)])
    begun_s = time.monotonic()
    raw.consume(1_000, 1.5)
    assert time.monotonic() - begun_s >= 1.4
    raw.close()
    reader = bench.reader({at: 0})
    begun_s = time.monotonic()
    assert bench.read_to(reader, at, 4)
    member = bench.member([at.topic])
    wait_until(lambda: member.poll(1.5) or member.records, "records")
    assert len(member.records) == 3
    assert log.name == "kafka"


def test_a_position_is_known_before_the_first_read(bench: Bench) -> None:
    """The client's `position()` is -1001 until a record was read, and again after each seek."""
    at = TopicPartition(bench.topic("t"), 0)
    member = bench.member([at.topic])
    member.starts = False
    wait_until(lambda: member.owns([at]), "the partition")
    raw: Any = member.consumer
    assert raw._client.position([ClientPartition(at.topic, 0)])[0].offset == -1001
    with pytest.raises(ValueError, match="no position"):
        member.consumer.position(at)
    member.consumer.seek(at, 0)
    assert raw._client.position([ClientPartition(at.topic, 0)])[0].offset == -1001
    assert member.consumer.position(at) == 0


def test_only_real_offsets_fence(bench: Bench) -> None:
    """The client commits -1001, or nothing at all, under any group generation: nothing is stored and nobody is fenced."""
    topic = bench.topic("t", 2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    one = bench.member([topic])
    wait_until(lambda: one.owns(both), "both partitions")
    stale = one.metadata
    two = bench.member([topic])
    wait_until(lambda: (one.poll(), two.poll(), one.mine and two.mine)[-1], "a share for both")
    producer = bench.producer()
    raw: Any = producer
    producer.begin()
    raw._client.send_offsets_to_transaction([ClientPartition(topic, 0, -1001)], stale)
    raw._client.send_offsets_to_transaction([], stale)
    producer.commit(10)
    producer.begin()
    with pytest.raises(ValueError, match="negative"):
        producer.send_offsets({both[0]: -1001}, stale)
    producer.send_offsets({both[0]: 0}, stale)
    with pytest.raises(TransactionAborted):
        producer.commit(10)
    producer.abort()


def test_partitions_start_paused(bench: Bench) -> None:
    """Pausing before `assign()` pauses nothing."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1", b"2"])
    first = bench.member([at.topic], instance="w1")
    wait_until(lambda: first.poll() or first.records, "records")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({at: 1}, first.metadata)
    producer.commit(10)
    again = bench.member([at.topic], instance="w1")  # there is a committed offset to start from by itself
    again.starts = False
    wait_until(lambda: again.owns([at]), "the partition")
    assert again.poll(0.7) == []
    again.start()
    wait_until(lambda: again.poll() or again.records, "records after resume")
    assert again.values() == [b"2"]


def test_a_resumed_partition_is_read_at_once(bench: Bench) -> None:
    """After a mere resume, or a seek to a bare offset, the client's broker thread may sleep on for a second."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"%d" % i for i in range(100)])
    member = bench.member([at.topic])
    member.starts = False
    wait_until(lambda: member.owns([at]), "the partition")
    member.poll(0.3)
    member.consumer.seek(at, 0)
    waits_s = []
    for _ in range(5):
        member.consumer.resume([at])
        begun_s = time.monotonic()
        found: list[Record] = []
        while not found and time.monotonic() < begun_s + 5:
            found = member.consumer.poll(5, 0.02)
        member.records += found
        waits_s.append(time.monotonic() - begun_s)
        member.consumer.pause([at])
        member.consumer.poll(1, 0.1)
    assert sorted(waits_s)[2] < 0.5  # most of them: one may meet a busy machine
    assert [r.offset for r in member.records] == list(range(25))


def test_a_partition_that_was_never_committed_is_not_skipped(bench: Bench) -> None:
    """`auto.offset.reset=error`: no silent jump to the end; the owner says where to start."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1"])
    member = bench.member([at.topic])
    member.starts = False
    wait_until(lambda: member.owns([at]), "the partition")
    with pytest.raises(OffsetOutOfRange):
        member.consumer.resume([at])
    member.start()
    wait_until(lambda: member.poll() or member.records, "records")
    assert member.values() == [b"1"]


def test_committed_offsets_wait_for_a_pending_transaction(bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    member = bench.member([at.topic])
    wait_until(lambda: member.owns([at]), "the partition")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({at: 0}, member.metadata)
    raw: Any = producer
    raw._join_sending()  # they are on their way while records are written
    with pytest.raises(LogUnavailable):
        member.consumer.committed([at], 0.5)
    producer.abort()
    assert member.consumer.committed([at], 5) == {at: None}


def test_a_dead_owners_transaction_ends_when_its_slot_restarts(bench: Bench, bootstrap: str) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    die_in_transaction(bootstrap, at.topic, bench.name("slot"), timeout_ms=600_000)
    assert bench.end(at, "committed") < bench.end(at)
    bench.producer("slot")
    wait_until(lambda: bench.end(at, "committed") == bench.end(at) == 2, "the transaction is over")


@pytest.mark.slow
def test_a_dead_owners_transaction_ends_by_itself(bench: Bench, bootstrap: str) -> None:
    """CASES 76: readers go on some 15 s later, with our transaction timeout of 5 s."""
    at = TopicPartition(bench.topic("t"), 0)
    die_in_transaction(bootstrap, at.topic, bench.name("slot"))
    bench.write(at.topic, [b"behind it"])
    reader = bench.reader({at: 0})
    wait_until(lambda: reader.poll(10, 0.2), "the record behind the dead transaction")


def test_a_record_too_large_shows_at_commit_and_spoils_nothing_after(bench: Bench) -> None:
    """The client's next transaction after such an abort fails with "skipped sequence numbers": an innocent batch would be blamed."""
    topic = bench.topic("t", 2, {"max.message.bytes": "2000"})
    at = TopicPartition(topic, 0)
    producer = bench.producer()
    for round_ in range(2):
        producer.begin()
        producer.produce(topic, random.Random(round_).randbytes(5_000), partition=0)
        for _ in range(50):
            with contextlib.suppress(RecordTooLarge):  # as soon as the client knows
                producer.produce(topic, b"beside", partition=round_)
        with pytest.raises(RecordTooLarge):
            producer.commit(10)
        producer.abort()
        producer.begin()
        producer.produce(topic, b"after %d" % round_, partition=0)
        producer.commit(10)
    records = bench.read_to(bench.reader({at: 0}), at, bench.end(at))
    assert [r.value for r in records] == [b"after 0", b"after 1"]


def test_a_full_local_queue_is_waited_for(bootstrap: str) -> None:
    """CASES 83: `produce` raises BufferError at the client's bound; ours lets deliveries make room."""
    log = KafkaLog(bootstrap, {"queue.buffering.max.messages": "100"})
    bench = Bench(log, uuid.uuid4().hex[:8])
    at = TopicPartition(bench.topic("t"), 0)
    producer = bench.producer()
    producer.begin()
    for i in range(10_000):
        producer.produce(at.topic, b"%d" % i, partition=0)
    producer.commit(20)
    records = bench.read_to(bench.reader({at: 0}), at, 10_000)
    assert [r.value for r in records] == [b"%d" % i for i in range(10_000)]
    bench.close()


def test_every_call_of_a_fenced_producer_says_so(bench: Bench) -> None:
    """A fatal producer's errors come in several forms; none leaves the seam as it is."""
    at = TopicPartition(bench.topic("t"), 0)
    zombie = bench.producer("same")
    zombie.begin()
    zombie.produce(at.topic, b"zombie", partition=0)
    wait_until(lambda: bench.end(at) == 1, "the zombie's record")
    rightful = bench.producer("same")
    with pytest.raises(CommitUnknown) as raised:
        zombie.commit(5)
    assert raised.value.fenced
    for call in (zombie.begin, lambda: zombie.produce(at.topic, b"x", partition=0), lambda: zombie.init(1)):
        with pytest.raises(ProducerFenced):
            call()
    zombie.close()
    rightful.begin()
    rightful.produce(at.topic, b"rightful", partition=0)
    rightful.commit(10)
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, bench.end(at))] == [b"rightful"]


def test_a_zombie_that_finds_out_while_writing_is_fenced(bench: Bench) -> None:
    topic = bench.topic("t")
    zombie = bench.producer("same")
    zombie.begin()
    bench.producer("same")
    zombie.produce(topic, b"zombie", partition=0)

    def go_on() -> None:
        zombie.produce(topic, b"zombie", partition=0)
        time.sleep(0.01)

    with pytest.raises((ProducerFenced, CommitUnknown)):
        wait_until(go_on, "the zombie is told")
    at = TopicPartition(topic, 0)
    bench.write(topic, [b"neighbour"])
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, bench.end(at))] == [b"neighbour"]


def test_a_restart_in_the_same_slot_owns_its_partitions_at_once(log: KafkaLog, bench: Bench) -> None:
    """And a clean stop of a static member sends no leave: until it restarts, or its session ends, nobody gets them."""
    topic = bench.topic("t", 2)
    one, two = bench.member([topic], instance="w1"), bench.member([topic], instance="w2")
    wait_until(lambda: (one.poll(), two.poll(), len(one.mine) == len(two.mine) == 1)[-1], "a share for both")
    owned, told = list(one.mine), list(two.told)
    one.consumer.close()
    end_s = time.monotonic() + 2.0
    while time.monotonic() < end_s:
        two.poll(0.1)
    assert two.told == told
    admin: Any = log._admin
    group = admin.describe_consumer_groups([bench.name("g")])[bench.name("g")].result(10)
    assert {member.group_instance_id for member in group.members} == {"w1", "w2"}
    again = bench.member([topic], instance="w1")
    wait_until(lambda: (two.poll(0.01), again.owns(owned))[-1], "its partitions")
    assert two.told == told  # had its session ended first, the other one would have got them


def test_a_seek_wins_over_the_start_of_a_fresh_partition(bench: Bench) -> None:
    """At a logical start (the end) a third of these consumers lost a partition's first records: the start's offset came after the seek."""
    writer = bench.log.plain_producer()
    for round_ in range(6):
        topic = bench.topic(
            f"t{round_}", 12
        )  # a consumer that is there before the leaders are known asks again half a second later
        partitions = [TopicPartition(topic, number) for number in range(12)]
        member = bench.member([topic], group=f"g{round_}", instance="w1")
        member.starts = False
        wait_until(partial(member.owns, partitions), "the partitions")
        for at in partitions:
            member.consumer.seek(at, 0)
            member.consumer.resume([at])
            time.sleep(0.04)  # as tasks restore one after another
        for at in partitions:
            writer.send(topic, b"1", partition=at.partition, timeout_s=10)
        wait_until(lambda one=member: (one.poll(), len(one.records) == 12)[1], "the first records")  # type: ignore[misc]
    writer.close()
