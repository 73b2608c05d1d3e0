"""The state directory: who holds it, what it may contain, and what a broken one becomes (DESIGN 6)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.errors import StateDirectoryHeld, UsageError
from state.tables.rocksdb import FORMAT, RocksStoreFactory
from state.tables.store import ChangelogPosition

AT_1 = ChangelogPosition("id", 1, 1_000)


def filled(state_dir: Path) -> Path:
    """A directory with one store of 20,000 rows, partly in files; closed."""
    factory = RocksStoreFactory(state_dir, "w1")
    store = factory.open("core", 0)
    for i in range(10):
        store.apply({b"u/%07d" % (i * 2_000 + j): os.urandom(100) for j in range(2_000)}, {"t": AT_1})
        store._db.flush()
    store.close()
    factory.close()
    return state_dir / "w1" / "core-0"


def test_a_held_directory_names_its_holder(tmp_path: Path) -> None:
    factory = RocksStoreFactory(tmp_path, "w1")
    with pytest.raises(StateDirectoryHeld, match=f"process {os.getpid()};"):
        RocksStoreFactory(tmp_path, "w1")
    RocksStoreFactory(tmp_path, "w2").close()
    factory.close()
    RocksStoreFactory(tmp_path, "w1").close()


def test_another_format_is_wiped_and_marked_anew(tmp_path: Path) -> None:
    filled(tmp_path)
    (tmp_path / "w1" / "FORMAT").write_text("kawait-state 0\n", encoding="utf-8")
    factory = RocksStoreFactory(tmp_path, "w1")
    store = factory.open("core", 0)
    assert store.positions() == {}
    assert (tmp_path / "w1" / "FORMAT").read_text(encoding="utf-8") == FORMAT + "\n"
    store.close()
    factory.close()


def test_a_directory_of_something_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "w1" / "photos.txt"
    precious.parent.mkdir()
    precious.write_text("precious", encoding="utf-8")
    with pytest.raises(UsageError, match="no kawait state"):
        RocksStoreFactory(tmp_path, "w1")
    assert precious.read_text(encoding="utf-8") == "precious"
    precious.unlink()
    RocksStoreFactory(tmp_path, "w1").close()  # the refusal let go of the lock


@pytest.mark.parametrize("instance", ["", ".", "..", "a/b", "a\0b"])
def test_an_instance_name_that_is_no_directory_name_is_refused(tmp_path: Path, instance: str) -> None:
    with pytest.raises(UsageError, match="instance name"):
        RocksStoreFactory(tmp_path, instance)


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
@pytest.mark.parametrize("damage", ["truncate", "garbage", "delete"])
def test_a_broken_database_is_wiped_and_starts_empty(tmp_path: Path, pattern: str, damage: str) -> None:
    path = filled(tmp_path)
    victim = min(path.glob(pattern))
    if damage == "truncate":
        os.truncate(victim, victim.stat().st_size // 2)
    elif damage == "garbage":
        victim.write_bytes(b"\xde\xad" * 500)
    else:
        victim.unlink()
    factory = RocksStoreFactory(tmp_path, "w1")
    store = factory.open("core", 0)
    assert store.positions() == {}
    store.apply({b"u/1": b"one"}, {"t": AT_1})
    assert store.get_many([b"u/1"]) == [b"one"]
    store.close()
    factory.close()


def test_a_torn_last_write_costs_that_write_alone(tmp_path: Path) -> None:
    """Rows and positions are one batch: whatever survives was true at its position."""
    factory = RocksStoreFactory(tmp_path, "w1")
    store = factory.open("core", 0)
    for n in range(1, 4):
        rows: dict[bytes, bytes | None] = {b"u/1": b"%d" % n, b"u/%d" % n: os.urandom(5_000)}
        store.apply(rows | {b"u/1": b"%d" % n}, {"t": ChangelogPosition("id", n, n)})
    copy = tmp_path / "w2" / "core-0"
    copy.mkdir(parents=True)
    for file in (tmp_path / "w1" / "core-0").iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    store.close()
    factory.close()
    wal = max(copy.glob("*.log"), key=lambda file: file.stat().st_size)
    os.truncate(wal, wal.stat().st_size - 100)
    (tmp_path / "w2" / "FORMAT").write_text(FORMAT, encoding="utf-8")
    factory = RocksStoreFactory(tmp_path, "w2")
    store = factory.open("core", 0)
    assert store.positions() == {"t": ChangelogPosition("id", 2, 2)}
    assert store.get_many([b"u/1"]) == [b"2"]
    store.close()
    factory.close()
