"""Restore ends, and with the right rows, on both logs (DESIGN 6, Restore; CASES 61 to 68)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from schemas.topics import TopicSettings
from state.tables.memory import MemoryStoreFactory
from state.tables.rocksdb import RocksStoreFactory
from state.tables.store import ChangelogPosition, Store, StoreFactory
from streams.clock import ManualClock, SystemClock
from streams.engine.restore import Restore
from streams.log.memory.log import MemoryLog
from streams.log.seam import Log, TopicPartition
from tests.contracts.members import Bench, wait_until

DAY_MS = 86_400_000


class Desk:
    """Two changelogs, one store, and restores of it."""

    def __init__(self, bench: Bench, factory: StoreFactory) -> None:
        config = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
        self.units = TopicPartition(bench.topic("units", 2, config), 1)
        self.items = TopicPartition(bench.topic("items", 2, config), 1)
        self.bench, self.factory, self.wiped = bench, factory, 0
        self.clock = ManualClock(SystemClock().now_ms())

    def write(self, rows: Sequence[tuple[TopicPartition, bytes, bytes | None]]) -> None:
        producer = self.bench.producer()
        producer.begin()
        for at, key, value in rows:
            producer.produce(at.topic, value, key=key, partition=at.partition)
        producer.commit(20)

    def begin(self, store: Store | None = None) -> Restore:
        opened = store or self.factory.open("core", 1)

        def reopen() -> Store:
            self.wiped += 1
            opened.close()
            self.factory.wipe("core", 1)
            return self.factory.open("core", 1)

        return Restore(
            self.bench.log,
            opened,
            topics={self.units.topic: "u", self.items.topic: "t"},
            partition=1,
            clock=self.clock,
            delete_retention_ms=DAY_MS,
            reopen=reopen,
        )

    def restore(self) -> Restore:
        restore = self.begin()
        wait_until(lambda: restore.step(0.2), "the restore is done")
        return restore

    def rows(self, store: Store) -> dict[bytes, bytes]:
        return dict(store.scan(b"e/", b"z"))


@pytest.fixture
def desk(bench: Bench) -> Desk:
    return Desk(bench, MemoryStoreFactory())


def test_an_empty_changelog_is_restored_at_once(desk: Desk) -> None:
    """CASES 64."""
    restore = desk.restore()
    assert (restore.progress(), desk.rows(restore.store), desk.wiped) == ((0, 0), {}, 0)
    assert {p.offset for p in restore.store.positions().values()} == {0}
    restore.store.close()


def test_rows_come_back_under_their_tables_prefix(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a"), (desk.items, b"1", b"b"), (desk.units, b"2", b"c"), (desk.units, b"1", b"d")])
    desk.write([(desk.units, b"2", None)])
    restore = desk.restore()
    assert desk.rows(restore.store) == {b"u/1": b"d", b"t/1": b"b"}
    assert restore.progress() == (8, 8)
    assert {t: p.offset for t, p in restore.store.positions().items()} == {desk.units.topic: 6, desk.items.topic: 2}
    restore.store.close()


def test_a_second_restore_reads_nothing(desk: Desk) -> None:
    """CASES 73: even after 300 records and a clean stop."""
    desk.write([(desk.units, b"%d" % i, b"v") for i in range(300)])
    desk.restore().store.close()
    again = desk.restore()
    assert again.progress() == (0, 0)
    assert len(desk.rows(again.store)) == 300
    assert desk.wiped == 0
    again.store.close()


def test_a_restore_goes_on_from_the_stored_position(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a"), (desk.units, b"2", b"a")])
    desk.restore().store.close()
    desk.write([(desk.units, b"1", b"b"), (desk.units, b"2", None), (desk.items, b"3", b"c")])
    again = desk.restore()
    assert desk.rows(again.store) == {b"u/1": b"b", b"t/3": b"c"}
    assert desk.wiped == 0
    again.store.close()


def test_an_aborted_tail_ends(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a")])
    producer = desk.bench.producer()
    producer.begin()
    producer.produce(desk.units.topic, b"no", key=b"1", partition=1)
    wait_until(lambda: desk.bench.end(desk.units) == 3, "the record has an offset")
    producer.abort()
    restore = desk.restore()
    assert desk.rows(restore.store) == {b"u/1": b"a"}
    assert restore.store.positions()[desk.units.topic].offset == desk.bench.end(desk.units) == 4
    restore.store.close()


def test_an_open_transaction_is_waited_for(desk: Desk) -> None:
    """CASES 76: the former owner's transaction commits or aborts first."""
    producer = desk.bench.producer("dying")
    producer.begin()
    producer.produce(desk.units.topic, b"late", key=b"1", partition=1)
    wait_until(lambda: desk.bench.end(desk.units) == 1, "the record has an offset")
    restore = desk.begin()
    assert not restore.step(0.05)
    assert "open transaction" in restore.waiting_for
    assert desk.units.topic in restore.waiting_for
    producer.commit(10)
    wait_until(lambda: restore.step(0.2), "the restore is done")
    assert restore.waiting_for == ""
    assert desk.rows(restore.store) == {b"u/1": b"late"}
    restore.store.close()


def test_a_store_of_another_topic_is_rebuilt(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a")])
    store = desk.factory.open("core", 1)
    store.apply({b"u/ghost": b"x"}, {desk.units.topic: ChangelogPosition("another", 1, desk.clock.now_ms())})
    store.close()
    restore = desk.restore()
    assert desk.rows(restore.store) == {b"u/1": b"a"}
    assert "another topic" in restore.rebuilt_because
    restore.store.close()


def test_a_store_of_a_foreign_application_is_rebuilt(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a")])
    store = desk.factory.open("core", 1)
    store.apply({b"u/ghost": b"x"}, {"foreign": ChangelogPosition("id", 1, desk.clock.now_ms())})
    store.close()
    restore = desk.restore()
    assert (desk.rows(restore.store), desk.wiped) == ({b"u/1": b"a"}, 1)
    assert restore.store.positions().keys() == {desk.units.topic, desk.items.topic}
    restore.store.close()


def test_a_position_above_the_end_is_not_trusted(desk: Desk) -> None:
    desk.write([(desk.units, b"1", b"a")])
    first = desk.restore()
    ahead = ChangelogPosition(first.store.positions()[desk.units.topic].topic_id, 1_000, desk.clock.now_ms())
    first.store.apply({b"u/ghost": b"x"}, {desk.units.topic: ahead})
    first.store.close()
    restore = desk.restore()
    assert (desk.rows(restore.store), desk.wiped) == ({b"u/1": b"a"}, 1)
    restore.store.close()


@pytest.mark.parametrize(("age_ms", "wiped"), [(DAY_MS // 2, 0), (DAY_MS // 2 + 1, 1)])
def test_a_store_left_behind_for_too_long_is_rebuilt(desk: Desk, age_ms: int, wiped: int) -> None:
    """It may have missed deletes that compaction has dropped by now."""
    desk.write([(desk.units, b"1", b"a")])
    desk.restore().store.close()
    desk.clock.advance(age_ms)
    current = desk.restore()  # nothing was written since: its age does not matter
    assert desk.wiped == 0
    current.store.close()
    desk.write([(desk.units, b"2", b"b")])
    desk.clock.advance(age_ms)
    restore = desk.restore()
    assert (desk.rows(restore.store), desk.wiped) == ({b"u/1": b"a", b"u/2": b"b"}, wiped)
    restore.store.close()


def test_a_position_below_the_log_start_is_rebuilt(desk: Desk, trim: Callable[[TopicPartition, int], None]) -> None:
    desk.write([(desk.units, b"old", b"a")])
    desk.restore().store.close()
    desk.write([(desk.units, b"%d" % i, b"v") for i in range(5)])
    trim(desk.units, 4)
    restore = desk.restore()
    assert (desk.rows(restore.store), desk.wiped) == ({b"u/2": b"v", b"u/3": b"v", b"u/4": b"v"}, 1)
    assert "is not within" in restore.rebuilt_because
    restore.store.close()


def test_a_partition_emptied_by_retention_is_restored_at_once(
    desk: Desk, trim: Callable[[TopicPartition, int], None]
) -> None:
    """CASES 64."""
    desk.write([(desk.units, b"1", b"a")])
    trim(desk.units, desk.bench.end(desk.units))
    restore = desk.restore()
    assert desk.rows(restore.store) == {}
    restore.store.close()


def test_a_log_start_that_moves_while_reading_starts_over(
    desk: Desk, trim: Callable[[TopicPartition, int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CASES 65."""
    desk.write([(desk.units, b"%d" % i, b"v") for i in range(20)])
    restore = desk.begin()
    choose = restore._choose

    def choose_then_trim() -> None:
        choose()
        trim(desk.units, 15)

    monkeypatch.setattr(restore, "_choose", choose_then_trim)
    wait_until(lambda: restore.step(0.2), "the restore is done")
    if desk.wiped:  # on Kafka the records may have been on their way already
        assert desk.rows(restore.store) == {b"u/%d" % i: b"v" for i in range(15, 20)}
    else:
        assert len(desk.rows(restore.store)) == 20
    restore.store.close()


def test_missing_topics_are_named_and_waited_for(bench: Bench, log: Log) -> None:
    store = MemoryStoreFactory().open("core", 0)
    name = bench.name("late")
    restore = Restore(
        log,
        store,
        topics={name: "u"},
        partition=0,
        clock=ManualClock(),
        delete_retention_ms=DAY_MS,
        reopen=lambda: store,
    )
    assert not restore.step(0.1)
    assert name in restore.waiting_for
    log.create_topics([TopicSettings(name, 1, 1, {"cleanup.policy": "compact"})], 20)
    wait_until(lambda: restore.step(0.1), "the restore is done")


def test_a_restore_given_up_in_the_middle_can_be_begun_again(desk: Desk) -> None:
    """CASES 68: a second rebalance during restore."""
    desk.write([(desk.units, b"%d" % i, b"v") for i in range(20)])
    restore = desk.begin()
    restore.step(0)
    restore.close()
    restore.store.close()
    again = desk.restore()
    assert len(desk.rows(again.store)) == 20
    again.store.close()


def test_compaction_gaps_up_to_the_end_are_passed() -> None:
    """CASES 62: neither the last record nor the records before it are there any more."""
    clock = ManualClock()
    log = MemoryLog(clock)
    bench = Bench(log, "gap")
    desk = Desk(bench, MemoryStoreFactory())
    desk.clock = clock
    desk.write([(desk.units, b"%d" % i, b"v") for i in range(5)])
    desk.write([(desk.units, b"%d" % i, None) for i in range(5)])
    clock.advance(2 * DAY_MS)
    log.compact()
    restore = desk.restore()
    assert desk.rows(restore.store) == {}
    assert restore.progress() == (12, 12)
    desk.write([(desk.units, b"1", b"w")])
    assert desk.rows(desk.restore().store) == {b"u/1": b"w"}


def test_a_broker_that_is_away_is_waited_for() -> None:
    log = MemoryLog(ManualClock())
    desk = Desk(Bench(log, "away"), MemoryStoreFactory())
    desk.write([(desk.units, b"1", b"a")])
    restore = desk.begin()
    log.set_available(available=False)
    assert not restore.step(0.1)
    assert "away" in restore.waiting_for
    log.set_available(available=True)
    assert restore.step(0.1)
    assert desk.rows(restore.store) == {b"u/1": b"a"}


def test_a_store_on_disk_is_restored_the_same(bench: Bench, tmp_path: Path) -> None:
    with closing(RocksStoreFactory(tmp_path, "w1")) as factory:
        desk = Desk(bench, factory)
        desk.write([(desk.units, b"%04d" % i, b"v" * 100) for i in range(2_000)])
        with closing(desk.restore().store) as store:
            assert len(desk.rows(store)) == 2_000
            store.apply({b"u/ghost": b"x"}, {desk.units.topic: ChangelogPosition("another", 1, 1)})
        with closing(desk.restore().store) as store:
            assert desk.wiped == 1
            assert len(desk.rows(store)) == 2_000


@pytest.mark.parametrize("left", [0.3, 0.5, 0.7, 0.8, 0.9, 0.97])
def test_a_store_whose_manifest_was_cut_is_restored_to_the_same(bench: Bench, tmp_path: Path, left: float) -> None:
    """Whatever older state opens, the changelog is followed from its own position."""
    with closing(RocksStoreFactory(tmp_path, "w1")) as factory:
        desk = Desk(bench, factory)
        with closing(factory.open("core", 1)) as store:
            for part in range(3):
                desk.write([(desk.units, b"%04d" % i, b"%d" % part) for i in range(part * 5, part * 5 + 20)])
                desk.write([(desk.units, b"%04d" % i, None) for i in range(part * 5, part * 5 + 3)])
                restore = desk.begin(store)
                wait_until(partial(restore.step, 0.2), "the restore is done")
                store._db.flush()
            expected = desk.rows(store)
        assert len(expected) == 21
        (manifest,) = (tmp_path / "w1" / "core-1").glob("MANIFEST-*")
        os.truncate(manifest, int(manifest.stat().st_size * left))
        with closing(desk.restore().store) as store:
            assert desk.rows(store) == expected
