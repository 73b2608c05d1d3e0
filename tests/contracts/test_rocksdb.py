"""The state directory: who holds it, what it may contain, and what a broken one becomes (DESIGN 6)."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from schemas.errors import StateBroken, StateDirectoryHeld, UsageError
from state.tables import rocksdb
from state.tables.rocksdb import FORMAT, RocksStore, RocksStoreFactory
from state.tables.store import ChangelogPosition
from tests.contracts.members import wait_until

BATCHES = 40
FILE_EVERY = 10
"""So many batches are in one file; fewer than four files, or RocksDB merges them when it likes."""
MANIFEST_STEP = 16
"""No entry of a MANIFEST is shorter: cuts so far apart hit each one."""

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "emptied": lambda whole: whole[:0],
    "garbage": lambda whole: (b"\xde\xad" * len(whole))[: len(whole)],
    "longer garbage": lambda whole: b"\xde\xad" * (len(whole) + 1),
    "zeros": lambda whole: bytes(len(whole)),
}


def at(offset: int, time_ms: int = 1_000) -> dict[str, ChangelogPosition]:
    """What is stored as position by the batch with this number."""
    return {"t": ChangelogPosition("id", offset, time_ms)}


def batch(number: int) -> dict[bytes, bytes | None]:
    """A row of its own, one that every batch writes anew, and an older one deleted."""
    return {b"u/%03d" % number: b"%d" % number * 50, b"u/last": b"%d" % number, b"u/%03d" % (number - 3): None}


def rows_after(number: int) -> dict[bytes, bytes]:
    """What the batches up to this number leave."""
    rows: dict[bytes, bytes | None] = {}
    for earlier in range(1, number + 1):
        rows |= batch(earlier)
    return {key: value for key, value in rows.items() if value is not None}


def rows_of(store: RocksStore) -> dict[bytes, bytes]:
    """Every row of all tables."""
    return dict(store.scan(b"e/", b"z"))


def offset_of(store: RocksStore) -> int:
    """How far the store says that it has followed; 0 for an empty one."""
    stored = store.positions()
    return stored["t"].offset if stored else 0


@contextmanager
def opened(state_dir: Path, instance: str = "w1") -> Iterator[RocksStore]:
    """The one store of a worker; let go of, with the directory, whatever happens."""
    with closing(RocksStoreFactory(state_dir, instance)) as stores, closing(stores.open("core", 0)) as store:
        yield store


def copied(source: Path, target: Path) -> Path:
    """The directory as a kill finds it; a file that RocksDB deletes meanwhile is one that it no longer needs."""
    shutil.rmtree(target, ignore_errors=True)
    for folder, _, names in os.walk(source):
        goal = target / Path(folder).relative_to(source)
        goal.mkdir(parents=True)
        for name in names:
            with suppress(FileNotFoundError):
                shutil.copyfile(Path(folder, name), goal / name)
    return target


def killed(state_dir: Path) -> Path:
    """Two files, and as much again in memory only."""
    with opened(state_dir / "alive") as store:
        for number in range(1, BATCHES + 1):
            store.apply(batch(number), at(number))
            if number in {FILE_EVERY, 2 * FILE_EVERY}:
                store._db.flush()
        return copied(state_dir / "alive", state_dir / "killed")


def merged_then_killed(state_dir: Path) -> Path:
    """Two files merged into one, then another one, and batches in memory only."""
    with opened(state_dir / "alive") as store:
        for number in range(1, BATCHES + 1):
            store.apply(batch(number), at(number))
            if number % FILE_EVERY == 0 and number < BATCHES:
                store._db.flush()
            if number == 2 * FILE_EVERY:
                store._db.compact_range(None, None)
        return copied(state_dir / "alive", state_dir / "killed")


def stopped(state_dir: Path) -> Path:
    """Two files, and a third made when the store was closed."""
    with opened(state_dir / "stopped") as store:
        for number in range(1, BATCHES + 1):
            store.apply(batch(number), at(number))
            if number in {FILE_EVERY, 2 * FILE_EVERY}:
                store._db.flush()
    return state_dir / "stopped"


def restarted_then_killed(state_dir: Path) -> Path:
    """A store that was stopped, opened again, and killed in the middle of new work."""
    stopped(state_dir)
    with opened(state_dir / "stopped") as store:
        for number in range(BATCHES + 1, BATCHES + FILE_EVERY + 1):
            store.apply(batch(number), at(number))
        return copied(state_dir / "stopped", state_dir / "killed")


Ended = Callable[[Path], Path]
ENDS = (killed, merged_then_killed, stopped, restarted_then_killed)


def assert_true_at_its_position(state_dir: Path) -> int:
    """What opens holds the rows of its position, no more and no less, and gets all the others by following on. Returns the position."""
    with opened(state_dir) as store:
        found = offset_of(store)
        assert rows_of(store) == rows_after(found)
        for number in range(found + 1, BATCHES + 1):
            store.apply(batch(number), at(number))
        assert rows_of(store) == rows_after(max(found, BATCHES))
    return found


def damaged(source: Path, file: Path, content: bytes) -> Path:
    """A copy of a state directory in which one file has other content."""
    copy = copied(source, source.with_name("damaged"))
    (copy / file.relative_to(source)).write_bytes(content)
    return copy


def files(state_dir: Path, pattern: str) -> list[Path]:
    """Those of the database with some content."""
    found = [path for path in sorted((state_dir / "w1" / "core-0").glob(pattern)) if path.stat().st_size]
    assert found
    return found


# --- who holds a directory -------------------------------------------------------------------------------------------------------------


def test_a_held_directory_names_its_holder(tmp_path: Path) -> None:
    with closing(RocksStoreFactory(tmp_path, "w1")):
        with pytest.raises(StateDirectoryHeld, match=f"process {os.getpid()};"):
            RocksStoreFactory(tmp_path, "w1")
        RocksStoreFactory(tmp_path, "w2").close()
    RocksStoreFactory(tmp_path, "w1").close()


def test_another_format_is_wiped_and_marked_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        store.apply(batch(1), at(1))
    (tmp_path / "w1" / "FORMAT").write_text("kawait-state 0\n", encoding="utf-8")
    with opened(tmp_path) as store:
        assert store.positions() == {}
    assert (tmp_path / "w1" / "FORMAT").read_text(encoding="utf-8") == FORMAT + "\n"


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


# --- what a kill leaves ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("end", "offset"),
    [
        (killed, 2 * FILE_EVERY),
        (merged_then_killed, 3 * FILE_EVERY),
        (stopped, BATCHES),
        (restarted_then_killed, BATCHES),
    ],
)
def test_a_store_goes_on_from_its_last_file(tmp_path: Path, end: Ended, offset: int) -> None:
    assert assert_true_at_its_position(end(tmp_path)) == offset


def test_rows_go_to_a_file_after_a_while_though_nothing_follows_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few rows never fill the memory; their position must not grow old there."""
    monkeypatch.setattr(rocksdb, "FLUSH_EVERY_S", 0.05)
    with opened(tmp_path / "alive") as store:
        store.apply(batch(1), at(1))
        store.apply(batch(2), at(2))
        wait_until(store._db.live_files, "the rows are in a file")
        wait_until(lambda: not store._unflushed, "all of them")
        assert assert_true_at_its_position(copied(tmp_path / "alive", tmp_path / "killed")) >= 1


# --- what a damaged directory becomes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
def test_a_manifest_cut_anywhere_opens_what_was_true_at_its_position(tmp_path: Path, end: Ended) -> None:
    """An older state heals, as the changelog is followed from its position; a hole below a position never would."""
    state_dir = end(tmp_path)
    (manifest,) = files(state_dir, "MANIFEST-*")
    whole = manifest.read_bytes()
    places = range(0, len(whole), MANIFEST_STEP)
    found = {assert_true_at_its_position(damaged(state_dir, manifest, whole[:cut])) for cut in places}
    assert found <= {0, FILE_EVERY, 2 * FILE_EVERY, 3 * FILE_EVERY, BATCHES}
    assert len(found) > 1  # some of the cuts did open


@pytest.mark.parametrize("pattern", ["MANIFEST-*", "CURRENT", "OPTIONS-*"])
@pytest.mark.parametrize("end", ENDS)
def test_zeros_from_anywhere_open_what_was_true_at_its_position(tmp_path: Path, end: Ended, pattern: str) -> None:
    """A power cut may leave a file with its length and without its content."""
    state_dir = end(tmp_path)
    for file in files(state_dir, pattern):
        whole = file.read_bytes()
        for place in range(0, len(whole), len(whole) // 8 + 1):
            assert_true_at_its_position(damaged(state_dir, file, whole[:place] + bytes(len(whole) - place)))


@pytest.mark.parametrize("pattern", ["*.sst", "MANIFEST-*", "CURRENT"])
@pytest.mark.parametrize("damage", [*DAMAGES, "deleted"])
def test_a_broken_database_is_wiped_and_starts_empty(tmp_path: Path, pattern: str, damage: str) -> None:
    state_dir = stopped(tmp_path)
    for file in files(state_dir, pattern):
        copy = damaged(state_dir, file, DAMAGES.get(damage, DAMAGES["emptied"])(file.read_bytes()))
        if damage == "deleted":
            (copy / file.relative_to(state_dir)).unlink()
        assert assert_true_at_its_position(copy) == 0


@pytest.mark.parametrize("pattern", ["*.sst", "CURRENT"])
def test_a_file_cut_anywhere_starts_empty(tmp_path: Path, pattern: str) -> None:
    state_dir = stopped(tmp_path)
    for file in files(state_dir, pattern):
        whole = file.read_bytes()
        for cut in range(0, len(whole), len(whole) // 8 + 1):
            assert assert_true_at_its_position(damaged(state_dir, file, whole[:cut])) == 0


# --- what cannot be read -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one_large_file(tmp_path: Path) -> Path:
    """Rows in one file of some sixty blocks, the first of which holds the position."""
    draw = random.Random(7)
    with opened(tmp_path / "whole") as store:
        store.apply({b"u/%04d" % number: draw.randbytes(100) for number in range(2_000)}, at(1))
    return tmp_path / "whole"


def flipped(state_dir: Path, place: float) -> Path:
    """A copy with one other bit in the blocks of rows."""
    (file,) = files(state_dir, "*.sst")
    content = bytearray(file.read_bytes())
    content[int(len(content) * place)] ^= 4
    return damaged(state_dir, file, bytes(content))


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("read", ["scan", "get"])
def test_a_row_that_cannot_be_read_is_told_and_the_next_start_is_empty(
    one_large_file: Path, place: float, read: str
) -> None:
    """A scan that ended there would look like one that met its end."""
    state_dir = flipped(one_large_file, place)
    with opened(state_dir) as store:
        assert offset_of(store) == 1
        with pytest.raises(StateBroken, match="rebuilt at the next start"):
            rows_of(store) if read == "scan" else store.get_many([b"u/%04d" % number for number in range(2_000)])
    with opened(state_dir) as store:
        assert (store.positions(), rows_of(store)) == ({}, {})


def test_a_scan_up_to_a_row_that_cannot_be_read_is_whole(one_large_file: Path) -> None:
    with opened(flipped(one_large_file, 0.5)) as store:
        assert len(list(store.scan(b"u/0000", b"u/0500"))) == 500
        assert len(list(store.scan(b"u/1500", b"u0"))) == 500


def test_a_position_that_cannot_be_read_starts_empty(one_large_file: Path) -> None:
    with opened(flipped(one_large_file, 0.0001)) as store:
        assert (store.positions(), rows_of(store)) == ({}, {})
        store.apply(batch(1), at(1))
        assert rows_of(store) == rows_after(1)
