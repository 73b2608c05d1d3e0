"""The store of one partition on disk: RocksDB through rocksdict (DESIGN 2, 6).

Theory of operation. Rows and positions of one `apply` are one batch, and batches reach the disk in their order: what is found at the next
open was true at its positions, and the changelog is followed from there. Nothing has to be saved, so one thing must never be: rows missing
below a stored position.

RocksDB's own log of writes is therefore off. Measured: when the end of its MANIFEST is lost, RocksDB opens an older set of files, finds the
files' logs deleted long ago, and applies the newest log on top: newest positions over a hole. Without the log the MANIFEST alone decides, and
each beginning of it names a state that was true. A killed worker follows its changelogs from the last file: a memory table or a minute behind.

What cannot be opened or read is `StateBroken`, leaves a mark, and is wiped and rebuilt from the changelog by the next open.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast
from weakref import WeakSet

import msgspec
from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteBufferManager,
    WriteOptions,
)

from schemas.errors import StateBroken, StateDirectoryHeld, UsageError
from state.tables.store import ChangelogPosition

FORMAT = "kawait-state 2"
"""Name and version of the directory's layout and of the rows' encoding; a directory of another version is rebuilt."""

WRITE_BUFFER_BYTES = 16 * 1024 * 1024
"""Rows of one partition in memory before they go to a file."""

WRITE_BUFFERS_BYTES_MAX = 64 * 1024 * 1024
"""The same over all partitions of a worker."""

BLOCK_CACHE_BYTES = 32 * 1024 * 1024
"""Blocks read from files, kept in memory, over all partitions of a worker."""

FLUSH_EVERY_S = 60.0
"""Rows go to a file after this time too, also when nothing follows them: a killed worker has little to follow, and its positions do not grow
old, neither while it runs nor while it is idle."""

_POSITION = b"\x00position/"  # sorts before every table, so no scan of rows meets it
_POSITIONS_END = b"\x00position0"
_LOCK_FILE = "LOCK"
_FORMAT_FILE = "FORMAT"
_BROKEN_FILE = "BROKEN"


class RocksStore:
    """A `state.tables.store.Store` on RocksDB; reads are safe from any thread.

    Args:
        path: Directory of the database; made when missing.
        options: As `_options` makes them; None for a store of its own.
    """

    def __init__(self, path: Path, options: Options | None = None) -> None:
        self._path = path
        self._db = Rdict(str(path), options=options or _options(*_shared_memory()))
        self._unlogged = _unlogged()
        self._decode = msgspec.msgpack.Decoder(ChangelogPosition).decode
        self._unflushed = False
        self._flushing = threading.Lock()
        self._closed = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`, None where there is no row."""
        self._check_open()
        with self._marked_when_broken():
            return cast(list[bytes | None], self._db.get(list(keys)))

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows with `start <= key < end` in key order, at most `limit`."""
        self._check_open()
        rows = self._between(self._db.iter(), start, end)
        return rows if limit is None else _first(rows, limit)

    def _between(self, at: RdictIter, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows of a span.

        Measured twice. RocksDB's own upper bound points into read options that rocksdict does not keep alive for the iterator, so once they
        are freed a scan stops wherever the memory's new content says. And `Rdict.items` ends at a block that cannot be read as if there were
        no more rows: only the status tells the two apart.
        """
        try:
            with self._marked_when_broken():
                at.seek(start)
                while at.valid() and (key := at.key()) < end:
                    yield key, at.value()
                    at.next()
                at.status()
        finally:
            del at  # else an error's traceback keeps the database open

    def apply(self, rows: Mapping[bytes, bytes | None], positions: Mapping[str, ChangelogPosition]) -> None:
        """Write rows (None deletes) and changelog positions in one atomic step."""
        self._check_open()
        batch = WriteBatch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for key, value in rows.items():
            if value is None:
                delete(key)
            else:
                put(key, value)
        for topic, position in positions.items():
            put(_POSITION + topic.encode(), msgspec.msgpack.encode(position))
        with self._marked_when_broken():
            self._db.write(batch, self._unlogged)
        self._unflushed = True

    def flush(self) -> None:
        """Have RocksDB write its memory to a file, on its own thread; from any thread."""
        with self._flushing:
            if self._unflushed and not self._closed:
                self._unflushed = False
                with self._marked_when_broken():
                    self._db.flush(wait=False)

    def positions(self) -> dict[str, ChangelogPosition]:
        """The stored changelog positions, by topic name."""
        stored = self.scan(_POSITION, _POSITIONS_END)
        return {key[len(_POSITION) :].decode(): self._decode(value) for key, value in stored}

    def close(self) -> None:
        """Write to a file what is in memory, and free the store; further calls fail."""
        if not self._closed:
            with self._flushing:
                self._closed = True
            with (
                suppress(StateBroken),
                self._marked_when_broken(),
            ):  # who closes has no more use for it; the next open knows
                self._db.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the store is closed")

    @contextmanager
    def _marked_when_broken(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # rocksdict raises bare Exceptions
            with suppress(OSError):
                (self._path / _BROKEN_FILE).touch()
            raise StateBroken(f"{self._path} cannot be used and will be rebuilt at the next start: {error}") from error


def _first(rows: Iterator[tuple[bytes, bytes]], limit: int) -> Iterator[tuple[bytes, bytes]]:
    """At most `limit` rows; does not touch the row after the last one."""
    for _, row in zip(range(limit), rows, strict=False):
        yield row


def _shared_memory() -> tuple[Cache, WriteBufferManager]:
    """The memory that all stores of a worker share."""
    return Cache(BLOCK_CACHE_BYTES), WriteBufferManager(WRITE_BUFFERS_BYTES_MAX, allow_stall=False)


def _unlogged() -> WriteOptions:
    """No entry in RocksDB's log of writes: see above, and Kafka has that log already."""
    options = WriteOptions()
    options.disable_wal = True  # type: ignore[assignment,method-assign] # an attribute, whatever the stub says
    return options


def _options(cache: Cache, buffers: WriteBufferManager) -> Options:
    """RocksDB's settings: raw bytes, moderate memory, few files."""
    table = BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(buffers)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(2)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_keep_log_file_num(2)
    return options


class RocksStoreFactory:
    """Opens the stores of a worker under `<state_dir>/<instance>` and holds that directory against other processes.

    Args:
        state_dir: Where workers keep their state; made when missing.
        instance: Name of the worker.

    Raises:
        StateDirectoryHeld: another process holds the directory.
        UsageError: the directory holds something else than our state.
    """

    def __init__(self, state_dir: Path, instance: str) -> None:
        if not instance or instance in {".", ".."} or "/" in instance or "\0" in instance:
            raise UsageError(f"instance name {instance!r} cannot name a directory; use letters, digits, '-' and '_'")
        self.path = state_dir / instance
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = _hold(self.path)
        try:
            _settle_format(self.path)
        except BaseException:
            self._lock.close()
            raise
        self._memory = _shared_memory()
        self._stores: WeakSet[RocksStore] = WeakSet()
        self._over = threading.Event()
        threading.Thread(target=self._flush_now_and_then, name="kawait-flush", daemon=True).start()

    def _flush_now_and_then(self) -> None:
        """On a thread of its own: what lies in memory goes to files, also of partitions to which nothing comes any more."""
        while not self._over.wait(FLUSH_EVERY_S):
            for store in list(self._stores):
                with suppress(StateBroken):  # it is marked, and whoever reads it next is told
                    store.flush()

    def open(self, role: str, partition: int) -> RocksStore:
        """Open, or make, the store of one partition. One that cannot be read is wiped and starts empty."""
        path = self._path(role, partition)
        store = None if (path / _BROKEN_FILE).exists() else self._opened(path)
        if store is None:
            self.wipe(role, partition)
            store = RocksStore(path, _options(*self._memory))
        self._stores.add(store)
        return store

    def _opened(self, path: Path) -> RocksStore | None:
        """The store as it is on disk, None when it cannot be read: whatever is wrong, the changelog has the rows."""
        try:
            store = RocksStore(path, _options(*self._memory))
        except Exception:  # rocksdict raises bare Exceptions
            return None
        try:
            store.positions()  # unreadable positions would be found too late, in the middle of a restore
        except Exception:
            store.close()
            return None
        return store

    def wipe(self, role: str, partition: int) -> None:
        """Delete the store of one partition; it must be closed."""
        shutil.rmtree(self._path(role, partition), ignore_errors=True)

    def close(self) -> None:
        """Let another process have the directory; the stores must be closed."""
        self._over.set()
        self._lock.close()

    def _path(self, role: str, partition: int) -> Path:
        return self.path / f"{role}-{partition}"


def _hold(path: Path) -> IO[str]:
    """Lock the directory for the life of the returned file."""
    lock = (path / _LOCK_FILE).open("a+", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise StateDirectoryHeld(
            f"state directory {path} is held by process {holder}; stop it, or start this worker under another instance name"
        ) from error
    lock.seek(0)
    lock.truncate()
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def _settle_format(path: Path) -> None:
    """Make sure the directory holds our format; another version of it is wiped, anything else is refused."""
    mark = path / _FORMAT_FILE
    found = mark.read_text(encoding="utf-8", errors="replace").strip() if mark.exists() else None
    if found == FORMAT:
        return
    others = [entry for entry in path.iterdir() if entry.name not in {_LOCK_FILE, _FORMAT_FILE}]
    if others and (found is None or not found.startswith(FORMAT.split(maxsplit=1)[0])):
        raise UsageError(f"{path} holds {others[0].name!r} and no kawait state; choose another state directory")
    for entry in others:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    mark.write_text(FORMAT + "\n", encoding="utf-8")
