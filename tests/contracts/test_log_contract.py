"""What both logs promise (DESIGN 6, 9)."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable

import pytest

from schemas.errors import (
    CommitUnknown,
    InstanceFenced,
    LogUnavailable,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    TransactionAborted,
)
from schemas.identity import home_partition
from schemas.limits import RECORD_BYTES_MAX
from streams.log.seam import Log, TopicPartition
from tests.contracts.members import Bench, Member, wait_until


def test_a_committed_record_is_read_as_it_was_written(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 2)
    at = TopicPartition(topic, 1)
    producer = bench.producer()
    producer.begin()
    producer.produce(topic, b"v", key=b"k", partition=1, headers=[("a", b"1"), ("a", b"2")])
    producer.produce(topic, None, key=b"k", partition=1)
    producer.produce(topic, b"", partition=1)
    before_ms = time.time_ns() // 1_000_000
    producer.commit(10)
    records = bench.read_to(bench.reader({at: 0}), at, 4)
    assert [(r.topic, r.partition, r.offset, r.key, r.value) for r in records] == [
        (topic, 1, 0, b"k", b"v"),
        (topic, 1, 1, b"k", None),
        (topic, 1, 2, None, b""),
    ]
    assert list(records[0].headers) == [("a", b"1"), ("a", b"2")]
    assert list(records[1].headers) == []
    assert abs(records[0].timestamp_ms - before_ms) < 60_000


def test_an_open_transaction_holds_the_stable_offset_until_it_ends(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, b"1", partition=0)
    wait_until(lambda: bench.end(at) == 1, "the record has an offset")
    bench.write(at.topic, [b"2"])
    wait_until(lambda: bench.end(at) == 3, "the marker of the other transaction")
    assert bench.end(at, "committed") == 0
    reader = bench.reader({at: 0})
    assert reader.poll(10, 0.2) == []
    producer.commit(10)
    wait_until(lambda: bench.end(at, "committed") == bench.end(at) == 4, "the marker")
    assert [r.value for r in bench.read_to(reader, at, 4)] == [b"1", b"2"]


def test_a_marker_takes_an_offset_and_position_passes_it(log: Log, bench: Bench) -> None:
    """CASES 61, 62: the last readable record is not the end."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1", b"2"])
    wait_until(lambda: bench.end(at) == 3, "the marker")
    reader = bench.reader({at: 0})
    assert [r.offset for r in bench.read_to(reader, at, 3)] == [0, 1]
    assert reader.position(at) == 3


def test_aborted_records_take_offsets_but_are_not_read(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1"])
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, b"no", partition=0)
    wait_until(lambda: bench.end(at) == 3, "the record has an offset")
    producer.abort()
    producer.abort()  # none open: nothing happens
    wait_until(lambda: bench.end(at, "committed") == 4, "the abort marker")
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, 4)] == [b"1"]
    dirty = bench.reader({at: 0}, "uncommitted")
    assert [r.value for r in bench.read_to(dirty, at, 4)] == [b"1", b"no"]


def test_offsets_are_told_with_the_commit(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 2)
    bench.write(topic, [b"1", b"2"], 1)
    told: list[int] = []
    producer = bench.producer()
    producer.begin()
    producer.produce(topic, b"3", partition=1, on_offset=told.append)
    producer.produce(topic, b"4", partition=1)
    producer.produce(topic, b"5", partition=1, on_offset=told.append)
    producer.commit(10)
    assert told == [3, 5]


def test_a_transaction_with_nothing_in_it_ends_well(log: Log, bench: Bench) -> None:
    producer = bench.producer()
    for _ in range(2):
        producer.begin()
        producer.commit(10)
    producer.begin()
    producer.abort()
    producer.begin()
    producer.commit(10)


def test_a_key_goes_to_javas_partition(log: Log, bench: Bench) -> None:
    """DESIGN 4: every producer agrees with `home_partition`."""
    topic = bench.topic("t", 7)
    producer, plain = bench.producer(), log.plain_producer()
    keys = [f"execution-{i}" for i in range(40)]
    producer.begin()
    for key in keys[:20]:
        producer.produce(topic, key.encode(), key=key.encode())
    producer.commit(10)
    for key in keys[20:]:
        plain.send(topic, key.encode(), key=key.encode(), timeout_s=10)
    plain.close()
    found = {}
    for number in range(7):
        at = TopicPartition(topic, number)
        for record in bench.read_to(bench.reader({at: 0}), at, bench.end(at)):
            found[(record.value or b"").decode()] = number
    assert found == {key: home_partition(key, 7) for key in keys}


def test_a_member_starts_paused_and_reads_after_seek_and_resume(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 2)
    bench.write(topic, [b"a", b"b"], 0)
    bench.write(topic, [b"c"], 1)
    member = bench.member([topic])
    member.starts = False
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    wait_until(lambda: member.owns(both), "both partitions")
    assert member.poll(0.3) == []
    assert member.consumer.committed(both, 5) == {both[0]: None, both[1]: None}
    member.consumer.seek(both[0], 1)
    member.consumer.resume([both[0]])
    wait_until(lambda: member.poll() or member.records, "records of the resumed partition")
    assert member.poll(0.3) == []
    assert member.values() == [b"b"]
    member.consumer.seek(both[1], 0)
    member.consumer.resume([both[1]])
    wait_until(lambda: member.poll() or len(member.records) == 2, "records of the other partition")
    assert member.values() == [b"b", b"c"]


def test_a_paused_partition_goes_on_where_it_stopped(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    at = TopicPartition(topic, 0)
    bench.write(topic, [b"%d" % i for i in range(50)])
    member = bench.member([topic])
    while len(member.records) < 50:
        found = member.consumer.poll(7, 0.5)
        assert len(found) <= 7
        member.records += found
        if member.mine:
            member.consumer.pause([at])
            assert member.consumer.poll(7, 0) == []
            member.consumer.resume([at])
            member.consumer.pause([at])  # nothing was read since
            member.consumer.resume([at])
    assert member.values() == [b"%d" % i for i in range(50)]
    for _ in range(3):
        assert member.consumer.poll(7, 0.1) == []
        member.consumer.pause([at])
        member.consumer.resume([at])


def test_a_members_position_passes_the_marker_at_the_end(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    at = TopicPartition(topic, 0)
    bench.write(topic, [b"1", b"2"])
    member = bench.member([topic])
    member.starts = False
    wait_until(lambda: member.owns([at]), "the partition")
    member.consumer.seek(at, 1)
    assert member.consumer.position(at) == 1
    member.consumer.resume([at])
    wait_until(lambda: (member.poll(), member.consumer.position(at) == 3)[-1], "the position behind the marker")
    assert member.values() == [b"2"]
    bench.write(topic, [b"3"])
    wait_until(lambda: (member.poll(), member.consumer.position(at) == 5)[-1], "the position behind the next marker")
    member.consumer.pause([at])
    member.consumer.resume([at])
    member.consumer.seek(at, 0)
    assert member.consumer.position(at) == 0
    wait_until(lambda: (member.poll(), len(member.records) == 5)[-1], "all of it again")
    assert member.values() == [b"2", b"3", b"1", b"2", b"3"]


def test_poll_takes_what_is_there_without_waiting_for_more(log: Log, bench: Bench) -> None:
    """DESIGN 6, batch: `consume(n, timeout)` of the client waits for n records or the whole timeout."""
    topic = bench.topic("t")
    bench.write(topic, [b"1", b"2", b"3"])
    member = bench.member([topic])
    wait_until(lambda: member.poll() or member.records, "records")
    bench.write(topic, [b"4"])
    begun_s = time.monotonic()
    wait_until(lambda: member.poll(40.0) or b"4" in member.values(), "the next record")
    assert time.monotonic() - begun_s < 20


def test_consumed_offsets_are_committed_with_the_transaction_only(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    at = TopicPartition(topic, 0)
    bench.write(topic, [b"1", b"2", b"3"])
    first = bench.member([topic])
    wait_until(lambda: first.poll() or len(first.records) == 3, "three records")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({at: 1}, first.metadata)
    producer.commit(10)
    producer.begin()
    producer.send_offsets({at: 3}, first.metadata)
    producer.abort()
    assert first.consumer.committed([at], 5) == {at: 1}
    first.consumer.close()
    second = bench.member([topic])
    wait_until(lambda: second.poll() or len(second.records) == 2, "the records after the committed one")
    assert second.values() == [b"2", b"3"]


def is_unknown(member: Member, at: TopicPartition) -> bool:
    try:
        member.consumer.committed([at], 0.3)
    except LogUnavailable:
        return True
    return False


def test_committed_is_not_known_while_a_transaction_moves_it(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    at = TopicPartition(topic, 0)
    member = bench.member([topic])
    wait_until(lambda: member.owns([at]), "the partition")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({at: 5}, member.metadata)
    wait_until(lambda: is_unknown(member, at), "positions on their way")
    assert is_unknown(member, at)
    producer.commit(10)
    assert member.consumer.committed([at], 5) == {at: 5}


def test_members_share_copartitioned_topics_by_number(log: Log, bench: Bench) -> None:
    topics = [bench.topic("a", 3), bench.topic("b", 3)]
    one = bench.member(topics)
    everything = [TopicPartition(t, p) for t in topics for p in range(3)]
    wait_until(lambda: one.owns(everything), "everything")
    two = bench.member(topics)

    def is_shared() -> bool:
        return bool(one.mine and two.mine) and sorted(one.mine + two.mine) == sorted(everything)

    wait_until(lambda: (one.poll(), two.poll(), is_shared())[-1], "a share for both")
    assert {at.partition for at in one.mine} & {at.partition for at in two.mine} == set()
    assert sorted(one.mine + two.mine) == sorted(everything)
    assert one.told[:2] == [("assign", sorted(everything)), ("revoke", sorted(everything))]
    assert one.told[-1] == ("assign", one.mine)
    two.consumer.close()
    wait_until(lambda: one.owns(everything), "everything again")


def test_offsets_of_an_older_generation_are_refused(log: Log, bench: Bench) -> None:
    """CASES 59: a transaction that was open over a rebalance must not come through."""
    topic = bench.topic("t", 2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    one = bench.member([topic])
    wait_until(lambda: one.owns(both), "both partitions")
    before = one.metadata
    producer = bench.producer()
    producer.begin()
    producer.produce(topic, b"late", partition=0)
    two = bench.member([topic])
    wait_until(lambda: (one.poll(), two.poll(), one.mine and two.mine)[-1], "a share for both")
    with contextlib.suppress(TransactionAborted):  # it is the log's choice whether it says so now or at the commit
        producer.send_offsets({both[0]: 1}, before)
    with pytest.raises(TransactionAborted):
        producer.commit(10)
    producer.abort()
    assert one.consumer.committed(both, 5) == {both[0]: None, both[1]: None}
    assert one.poll(0.3) == two.poll(0.3) == []
    producer.begin()  # the producer itself is well
    producer.send_offsets({one.mine[0]: 7}, one.metadata)
    producer.commit(10)
    assert one.consumer.committed(one.mine, 5) == {one.mine[0]: 7}


def test_empty_offsets_fence_nothing_and_negative_ones_are_refused(log: Log, bench: Bench) -> None:
    """DESIGN 6, step 4: so the owner must send valid offsets for every partition it touched."""
    topic = bench.topic("t", 2)
    one = bench.member([topic])
    wait_until(lambda: one.owns([TopicPartition(topic, 0), TopicPartition(topic, 1)]), "both partitions")
    before = one.metadata
    two = bench.member([topic])
    wait_until(lambda: (one.poll(), two.poll(), one.mine and two.mine)[-1], "a share for both")
    producer = bench.producer()
    producer.begin()
    producer.send_offsets({}, before)
    with pytest.raises(ValueError, match="negative"):
        producer.send_offsets({TopicPartition(topic, 0): -1001}, before)
    producer.commit(10)


def test_a_group_knows_its_static_members(log: Log, bench: Bench) -> None:
    """A dead one stays for its session timeout."""
    topic = bench.topic("t")
    member = bench.member([topic], instance="w1")
    wait_until(lambda: member.owns([TopicPartition(topic, 0)]), "the partition")
    assert log.has_member(bench.name("g"), "w1", 5)
    assert not log.has_member(bench.name("g"), "w2", 5)
    assert not log.has_member(bench.name("nobodys"), "w1", 5)
    member.consumer.close()
    assert log.has_member(bench.name("g"), "w1", 5)


def test_the_newest_process_of_an_instance_wins_without_a_rebalance(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 2)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    other = bench.member([topic], instance="w2")
    older = bench.member([topic], instance="w1")
    wait_until(lambda: (other.poll(), older.poll(), len(other.mine) == len(older.mine) == 1)[-1], "a share for both")
    told, owned = list(other.told), list(older.mine)
    newer = bench.member([topic], instance="w1")
    wait_until(lambda: (other.poll(), newer.owns(owned))[-1], "the older one's partitions")
    with pytest.raises(InstanceFenced):
        wait_until(lambda: older.poll() and False, "the older one is told")
    assert other.told == told
    assert sorted(other.mine + newer.mine) == both


def test_the_newest_producer_of_an_id_fences_the_older(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    older = bench.producer("same")
    older.begin()
    older.produce(at.topic, b"old", partition=0)
    wait_until(lambda: bench.end(at) == 1, "the record has an offset")
    newer = bench.producer("same")
    wait_until(lambda: bench.end(at, "committed") == 2, "the older one's transaction was ended")
    with pytest.raises(CommitUnknown) as raised:
        older.commit(5)
    assert raised.value.fenced
    with pytest.raises(ProducerFenced):
        older.begin()
    newer.begin()
    newer.produce(at.topic, b"new", partition=0)
    newer.commit(10)
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, 4)] == [b"new"]


def test_a_record_too_large_for_its_topic_shows_at_commit(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t", 1, {"max.message.bytes": "2000"}), 0)
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, random.Random(1).randbytes(5_000), partition=0)
    producer.produce(at.topic, b"small", partition=0)
    with pytest.raises(RecordTooLarge):
        producer.commit(10)
    producer.abort()
    producer.begin()
    producer.produce(at.topic, b"after", partition=0)
    producer.commit(10)
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, bench.end(at))] == [b"after"]


def test_a_record_too_large_for_the_client_fails_the_transaction_too(log: Log, bench: Bench) -> None:
    """The client would commit the rest of the transaction without it."""
    at = TopicPartition(bench.topic("t"), 0)
    producer = bench.producer()
    producer.begin()
    producer.produce(at.topic, b"beside", partition=0)
    with pytest.raises(RecordTooLarge):
        producer.produce(at.topic, bytes(RECORD_BYTES_MAX + 1), partition=0)
    with pytest.raises(RecordTooLarge):
        producer.commit(10)
    producer.abort()
    bench.write(at.topic, [b"after"])
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, bench.end(at))] == [b"after"]


def test_a_record_for_a_partition_that_is_not_there_fails_the_transaction(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    producer = bench.producer()
    producer.begin()
    producer.produce(topic, b"known", partition=0)
    producer.commit(10)
    producer.begin()
    with contextlib.suppress(TransactionAborted):  # Kafka's client knows at once
        producer.produce(topic, b"x", partition=9)
    with pytest.raises(TransactionAborted):
        producer.commit(10)
    producer.abort()


def test_topics_tell_what_is_there(log: Log, bench: Bench) -> None:
    name = bench.topic("t", 3, {"cleanup.policy": "compact", "max.message.bytes": "12345"})
    bench.topic("t", 5)  # exists: left as it is
    state = log.topics([name, bench.name("missing")], 10)
    assert list(state) == [name]
    assert (state[name].name, state[name].partitions) == (name, 3)
    assert state[name].topic_id
    assert state[name].config["cleanup.policy"] == "compact"
    assert state[name].config["max.message.bytes"] == "12345"
    assert log.topics([], 1) == {}


def test_offsets_of_a_new_topic_are_zero(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    assert log.start_offsets([at], 10) == {at: 0}
    assert bench.end(at) == bench.end(at, "committed") == 0
    assert log.start_offsets([], 1) == {}
    with pytest.raises(LogUnavailable):
        log.end_offsets([TopicPartition(bench.name("missing"), 0)], "committed", 0.5)


def test_offsets_are_found_by_time(log: Log, bench: Bench) -> None:
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"1", b"2"])
    records = bench.read_to(bench.reader({at: 0}), at, 3)
    assert log.offsets_at([at], records[0].timestamp_ms, 10) == {at: 0}
    assert log.offsets_at([at], records[1].timestamp_ms + 60_000, 10) == {at: 3}


def test_a_reader_below_the_log_start_is_told(
    log: Log, bench: Bench, trim: Callable[[TopicPartition, int], None]
) -> None:
    """CASES 65: never reset silently."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"%d" % i for i in range(10)])
    trim(at, 5)
    assert log.start_offsets([at], 10) == {at: 5}
    for position in (0, 99):
        reader = bench.reader({at: position})
        with pytest.raises(OffsetOutOfRange):
            wait_until(lambda r=reader: r.poll(10, 0.1) and False, "the reader is told")  # type: ignore[misc]
    assert [r.value for r in bench.read_to(bench.reader({at: 5}), at, 11)] == [b"5", b"6", b"7", b"8", b"9"]


def test_a_member_below_the_log_start_is_told(
    log: Log, bench: Bench, trim: Callable[[TopicPartition, int], None]
) -> None:
    """CASES 67: a committed offset older than what is kept stops the worker."""
    at = TopicPartition(bench.topic("t"), 0)
    bench.write(at.topic, [b"%d" % i for i in range(10)])
    trim(at, 5)
    member = bench.member([at.topic])
    member.starts = False
    wait_until(lambda: member.owns([at]), "the partition")
    member.consumer.seek(at, 2)
    member.consumer.resume([at])
    with pytest.raises(OffsetOutOfRange):
        wait_until(lambda: member.poll() and False, "the member is told")


def test_a_reader_takes_a_new_assignment(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    bench.write(topic, [b"a", b"b"], 0)
    bench.write(topic, [b"c", b"d"], 1)
    reader = bench.reader({zero: 0})
    assert [r.value for r in bench.read_to(reader, zero, 3)] == [b"a", b"b"]
    reader.assign({one: 1})
    assert [r.value for r in bench.read_to(reader, one, 3)] == [b"d"]


def test_a_plain_producer_says_when_it_cannot_store(log: Log, bench: Bench) -> None:
    topic = bench.topic("t", 1, {"max.message.bytes": "2000"})
    plain = log.plain_producer()
    plain.send(topic, b"1", key=b"k", timeout_s=10)
    with pytest.raises(RecordTooLarge):
        plain.send(topic, random.Random(1).randbytes(5_000), timeout_s=10)
    plain.close()
    at = TopicPartition(topic, 0)
    assert [r.value for r in bench.read_to(bench.reader({at: 0}), at, bench.end(at))] == [b"1"]


def test_what_a_rebalance_callback_raises_comes_out_of_poll(log: Log, bench: Bench) -> None:
    topic = bench.topic("t")
    member = bench.member([topic])

    def refuse() -> None:
        raise LookupError("unequal partitions")

    member.start = refuse  # type: ignore[method-assign]
    with pytest.raises(LookupError, match="unequal"):
        wait_until(lambda: member.poll() and False, "the callback is heard")
