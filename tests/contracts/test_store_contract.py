"""What both stores promise (DESIGN 6, step 6)."""

from __future__ import annotations

import threading

import pytest

from state.tables.store import ChangelogPosition, StoreFactory

AT_1 = ChangelogPosition("id", 1, 1_000)
AT_2 = ChangelogPosition("id", 2, 2_000)


def test_rows_are_found_as_written(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    store.apply({b"u/1": b"one", b"u/2": b"", b"e/1": b"\x00\xff"}, {})
    assert store.get_many([b"u/2", b"none", b"e/1", b"u/1", b"u/2"]) == [b"", None, b"\x00\xff", b"one", b""]
    assert store.get_many([]) == []
    store.close()


def test_none_deletes_and_a_row_can_come_back(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    store.apply({b"u/1": b"one", b"u/2": b"two"}, {})
    assert len(list(store.scan(b"u/", b"u0"))) == 2
    store.apply({b"u/1": None, b"u/never": None}, {})
    assert list(store.scan(b"u/", b"u0")) == [(b"u/2", b"two")]
    store.apply({b"u/1": b"again"}, {})
    assert list(store.scan(b"u/", b"u0")) == [(b"u/1", b"again"), (b"u/2", b"two")]
    assert store.get_many([b"u/1"]) == [b"again"]
    store.close()


def test_a_scan_is_ordered_and_bounded(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    keys = [b"t/%05d" % i for i in range(2_500)]
    for first in (1, 0):  # written out of order
        store.apply({key: key for key in keys[first::2]}, {"topic": AT_1})
    assert list(store.scan(b"t/", b"t0")) == [(key, key) for key in keys]
    assert [key for key, _ in store.scan(b"t/00010", b"t/00013")] == keys[10:13]
    assert [key for key, _ in store.scan(b"t/02490", b"t0", limit=100)] == keys[2490:]
    assert [key for key, _ in store.scan(b"t/", b"t0", limit=1_500)] == keys[:1_500]
    assert list(store.scan(b"t/", b"t0", limit=0)) == []
    assert list(store.scan(b"\x00", b"t/")) in ([], [*store.scan(b"\x00", b"\x01")])
    assert list(store.scan(b"x/", b"x0")) == []
    store.close()


def test_positions_are_kept_apart_from_rows_and_survive(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    assert store.positions() == {}
    store.apply({b"u/1": b"one"}, {"a-changelog": AT_1})
    store.apply({}, {"b-changelog": AT_1})
    store.apply({b"u/1": b"two"}, {"a-changelog": AT_2})
    store.close()
    store = factory.open("core", 0)
    assert store.positions() == {"a-changelog": AT_2, "b-changelog": AT_1}
    assert store.get_many([b"u/1"]) == [b"two"]
    assert list(store.scan(b"e/", b"z")) == [(b"u/1", b"two")]
    store.close()


def test_stores_of_partitions_and_roles_are_apart(factory: StoreFactory) -> None:
    stores = [factory.open("core", 0), factory.open("core", 1), factory.open("continuation", 0)]
    for i, store in enumerate(stores):
        store.apply({b"u/1": b"%d" % i}, {})
    assert [store.get_many([b"u/1"]) for store in stores] == [[b"0"], [b"1"], [b"2"]]
    stores[1].close()
    factory.wipe("core", 1)
    stores[1] = factory.open("core", 1)
    assert [store.get_many([b"u/1"]) for store in stores] == [[b"0"], [None], [b"2"]]
    for store in stores:
        store.close()


def test_a_wiped_store_is_empty(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    store.apply({b"u/1": b"one"}, {"a-changelog": AT_1})
    store.close()
    factory.wipe("core", 0)
    factory.wipe("core", 7)  # never there: nothing to do
    store = factory.open("core", 0)
    assert store.positions() == {}
    assert list(store.scan(b"", b"\xff")) == []
    store.close()


def test_a_closed_store_refuses(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    store.close()
    store.close()
    for call in (lambda: store.get_many([b"a"]), lambda: list(store.scan(b"", b"z")), lambda: store.apply({}, {})):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_reads_go_on_while_the_owner_writes(factory: StoreFactory) -> None:
    store = factory.open("core", 0)
    stop, wrong = threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            rows = list(store.scan(b"u/", b"u0"))
            if [key for key, _ in rows] != sorted({key for key, _ in rows}):
                wrong.append(rows)
            store.get_many([b"u/00001", b"u/99999"])

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for i in range(300):
            store.apply({b"u/%05d" % (i * 7919 % 1000): b"v", b"u/%05d" % (i % 50): None}, {"t": AT_1})
    finally:
        stop.set()
        reader.join()
    assert not wrong
    store.close()


def test_a_scan_stays_whole_while_memory_is_used_otherwise(factory: StoreFactory) -> None:
    """RocksDB's own upper bound points into memory that is free once the scan has begun."""
    store = factory.open("core", 0)
    keys = [b"t/8d7c2480-20d7-588a-8372-363e298fa8a7.1.%09d" % number for number in range(2_000)]
    store.apply(dict.fromkeys(keys, b"value"), {"topic": AT_1})
    found: list[bytes] = []
    for key, _ in store.scan(
        b"t/8d7c2480-20d7-588a-8372-363e298fa8a7.1.", b"t/8d7c2480-20d7-588a-8372-363e298fa8a7.1.~"
    ):
        found.append(key)
        store.scan(b"u/", b"u/%d" % len(found))  # takes memory and frees it
        bytes(len(found) % 64)
    assert found == keys
    store.close()
