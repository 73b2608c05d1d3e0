"""What only the log in memory offers: time moved by hand, faults and compaction as inputs (DESIGN 9, 10)."""

from __future__ import annotations

import threading

import pytest

from schemas.errors import CommitUnknown, InstanceFenced, LogUnavailable, ProducerFenced, TransactionAborted
from schemas.limits import SESSION_TIMEOUT_MS
from schemas.topics import TopicSettings
from streams.clock import ManualClock
from streams.log.memory.log import MemoryLog
from streams.log.memory.producer import MemoryProducer
from streams.log.seam import Record, TopicPartition
from tests.contracts.members import Member

AT = TopicPartition("t", 0)
COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "1000"}


def make(partitions: int = 1, config: dict[str, str] | None = None) -> tuple[MemoryLog, ManualClock]:
    clock = ManualClock()
    log = MemoryLog(clock)
    log.create_topics([TopicSettings("t", partitions, 1, config or {})], 1)
    return log, clock


def producer_of(log: MemoryLog, name: str = "p") -> MemoryProducer:
    producer = log.producer(name)
    producer.init(1)
    return producer


def write(log: MemoryLog, *rows: tuple[bytes, bytes | None]) -> None:
    producer = producer_of(log, "w")
    producer.begin()
    for key, value in rows:
        producer.produce("t", value, key=key, partition=0)
    producer.commit(1)


def read(log: MemoryLog, start: int = 0) -> list[Record]:
    reader = log.reader()
    reader.assign({AT: start})
    return reader.poll(1000, 1)


def test_nothing_waits_when_time_is_moved_by_hand() -> None:
    log, clock = make()
    member = Member(log, "g", ["t"], None)
    assert member.poll(3600) == []
    assert log.reader().poll(1, 3600) == []
    clock.advance(5)
    write(log, (b"k", b"v"))
    assert [r.timestamp_ms for r in member.poll(3600)] == [clock.now_ms()]


@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_commit_of_unknown_outcome_has_happened_or_not(kind: str) -> None:
    log, _ = make()
    producer = producer_of(log)
    producer.begin()
    producer.produce("t", b"v", partition=0)
    log.fail_next_commit("before" if kind == "before" else "after")
    with pytest.raises(CommitUnknown) as raised:
        producer.commit(1)
    assert not raised.value.fenced
    with pytest.raises(ProducerFenced):
        producer.begin()
    producer.abort()
    producer.close()
    assert len(read(log)) == (1 if kind == "after" else 0)
    assert log.end_offsets([AT], "committed", 1) == {AT: 2 if kind == "after" else 0}  # else open until the next init
    producer_of(log)
    assert log.end_offsets([AT], "committed", 1) == {AT: 2}
    assert len(read(log)) == (1 if kind == "after" else 0)


def test_a_refused_commit_can_be_decided_again() -> None:
    log, _ = make()
    producer = producer_of(log)
    log.fail_next_commit("abort", "someone-else")
    log.fail_next_commit("abort", "p")
    for fails in (True, False):
        producer.begin()
        producer.produce("t", b"v", partition=0)
        if fails:
            with pytest.raises(TransactionAborted):
                producer.commit(1)
            producer.abort()
        else:
            producer.commit(1)
    assert [r.offset for r in read(log)] == [2]


def test_an_expired_transaction_is_aborted_and_its_producer_fenced() -> None:
    log, _ = make()
    producer = producer_of(log)
    producer.begin()
    producer.produce("t", b"v", partition=0)
    log.expire_transaction("p")
    assert log.end_offsets([AT], "committed", 1) == {AT: 2}
    with pytest.raises(ProducerFenced):
        producer.produce("t", b"w", partition=0)
    with pytest.raises(CommitUnknown) as raised:
        producer.commit(1)
    assert raised.value.fenced
    producer.abort()
    assert read(log) == []


def test_a_kicked_member_loses_what_it_has_and_comes_back() -> None:
    log, _ = make(2)
    one, two = Member(log, "g", ["t"], "w1"), Member(log, "g", ["t"], "w2")
    for member in (one, two, one, two, one):
        member.poll()
    assert (one.mine, two.mine) == ([("t", 0)], [("t", 1)])
    stale = one.metadata
    log.kick(one.consumer)  # type: ignore[arg-type]
    two.poll()
    assert two.mine == [("t", 0), ("t", 1)]
    producer = producer_of(log)
    producer.begin()
    with pytest.raises(TransactionAborted):
        producer.send_offsets({AT: 1}, stale)
    producer.abort()
    one.poll()
    assert one.told[-1] == ("lost", [("t", 0)])
    for member in (two, one, two):
        member.poll()
    assert (one.mine, two.mine) == ([("t", 0)], [("t", 1)])


def test_a_static_member_that_stopped_keeps_its_share_for_its_session() -> None:
    """DESIGN 6, other traps: a static member sends no leave."""
    log, clock = make(2)
    one, two = Member(log, "g", ["t"], "w1"), Member(log, "g", ["t"], "w2")
    for member in (one, two, one, two):
        member.poll()
    one.consumer.close()
    clock.advance(SESSION_TIMEOUT_MS - 1)
    two.poll()
    assert len(two.mine) == 1
    clock.advance(1)
    two.poll()
    assert len(two.mine) == 2


def test_a_static_member_that_comes_back_in_time_gets_its_share_at_once() -> None:
    log, _ = make(2)
    one, two = Member(log, "g", ["t"], "w1"), Member(log, "g", ["t"], "w2")
    for member in (one, two, one, two):
        member.poll()
    one.consumer.close()
    again = Member(log, "g", ["t"], "w1")
    again.poll()
    assert again.mine == [("t", 0)]
    assert len(two.told) == 1
    with pytest.raises(RuntimeError, match="closed"):
        one.consumer.poll(1, 0)


def test_a_fenced_instance_stays_fenced() -> None:
    log, _ = make()
    older, newer = Member(log, "g", ["t"], "w1"), Member(log, "g", ["t"], "w1")
    older.poll()
    newer.poll()
    for _ in range(2):
        with pytest.raises(InstanceFenced):
            older.poll()
    assert newer.mine == [AT]
    older.consumer.close()
    newer.poll()
    assert newer.mine == [AT]


def test_compaction_keeps_the_last_of_each_key_and_every_offset() -> None:
    log, clock = make(config=COMPACTED)
    write(log, (b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None))
    producer = producer_of(log)
    producer.begin()
    producer.produce("t", b"3", key=b"a", partition=0)
    log.compact()
    assert [(r.offset, r.key, r.value) for r in read(log)] == [(2, b"a", b"2"), (3, b"b", None)]
    producer.commit(1)
    clock.advance(1_000)
    log.compact("t")
    assert [(r.offset, r.value) for r in read(log)] == [(5, b"3")]
    reader = log.reader()
    reader.assign({AT: 0})
    assert len(reader.poll(1, 0)) == 1
    reader.poll(1, 0)
    assert reader.position(AT) == 7
    assert log.start_offsets([AT], 1) == {AT: 0}


def test_an_aborted_tail_is_compacted_away_without_a_trace() -> None:
    log, _ = make(config=COMPACTED)
    write(log, (b"a", b"1"))
    producer = producer_of(log)
    producer.begin()
    producer.produce("t", b"no", key=b"a", partition=0)
    producer.abort()
    log.compact()
    assert [r.value for r in read(log)] == [b"1"]


def test_a_record_without_key_is_refused_by_a_compacted_topic() -> None:
    """CASES 91."""
    log, _ = make(config=COMPACTED)
    producer = producer_of(log)
    producer.begin()
    producer.produce("t", b"v", partition=0)
    with pytest.raises(TransactionAborted, match="without key"):
        producer.commit(1)


def test_a_broker_that_is_away_is_told_and_comes_back() -> None:
    log, _ = make()
    member = Member(log, "g", ["t"], None)
    member.poll()
    log.set_available(available=False)
    for call in (member.poll, lambda: log.topics(["t"], 1), lambda: producer_of(log)):
        with pytest.raises(LogUnavailable):
            call()
    log.set_available(available=True)
    write(log, (b"k", b"v"))
    assert len(member.poll()) == 1


def test_a_topic_made_again_has_another_id() -> None:
    log, _ = make()
    write(log, (b"k", b"v"))
    before = log.topics(["t"], 1)["t"].topic_id
    log.delete_topic("t")
    assert log.topics(["t"], 1) == {}
    log.create_topics([TopicSettings("t", 1, 1, {})], 1)
    assert log.topics(["t"], 1)["t"].topic_id != before
    assert log.end_offsets([AT], "uncommitted", 1) == {AT: 0}


def test_threads_wait_for_each_other() -> None:
    log = MemoryLog()
    log.create_topics([TopicSettings("t", 1, 1, {}), TopicSettings("u", 1, 1, {})], 1)
    echoed: list[Record] = []

    def echo() -> None:
        member = Member(log, "echo", ["t"], None)
        producer = producer_of(log, "echo")
        while len(member.records) < 200:
            found = member.poll(5)
            producer.begin()
            for record in found:
                producer.produce("u", record.value, partition=0)
            producer.commit(1)
        member.consumer.close()

    thread = threading.Thread(target=echo)
    thread.start()
    back = Member(log, "back", ["u"], None)
    producer = producer_of(log, "ask")
    for i in range(200):
        producer.begin()
        producer.produce("t", b"%d" % i, partition=0)
        producer.commit(1)
        if i % 10 == 0:
            echoed += back.poll(5)
    while len(echoed) < 200:
        found = back.poll(5)
        assert found
        echoed += found
    thread.join(10)
    assert [r.value for r in echoed] == [b"%d" % i for i in range(200)]


def test_records_are_shared_out_between_partitions() -> None:
    log, _ = make(3)
    producer = producer_of(log)
    producer.begin()
    for i in range(300):
        producer.produce("t", b"v", partition=i % 3)
    producer.commit(1)
    member = Member(log, "g", ["t"], None)
    member.poll()
    member.consumer.close()
    member = Member(log, "g", ["t"], None)
    seen = set()
    for _ in range(3):
        seen |= {r.partition for r in member.consumer.poll(10, 0)}
    assert seen == {0, 1, 2}
