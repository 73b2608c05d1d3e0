"""The store of one partition in memory: for the demo, the test driver and the simulator (DESIGN 9)."""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence

from state.tables.store import ChangelogPosition

_CHUNK = 1_000
"""Rows that a scan copies at a time while it holds the lock."""


class _Disk:
    """What outlives a crash: the rows of one partition and the positions they are true up to."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []  # sorted; may name deleted rows, never lacks one that is not in `fresh`
        self.fresh: list[bytes] = []  # new keys that no scan has needed in order yet
        self.positions: dict[str, ChangelogPosition] = {}
        self.lock = threading.Lock()

    def sort(self) -> None:
        """Bring `keys` up to date; sorting an almost sorted list is linear."""
        if len(self.fresh) == 1:
            insort(self.keys, self.fresh[0])
        elif self.fresh:
            self.keys.extend(self.fresh)
            self.keys.sort()
        self.fresh = []
        if len(self.keys) > 2 * len(self.rows) + _CHUNK:
            self.keys = sorted(self.rows)


class MemoryStore:
    """A `state.tables.store.Store` over a dict with its keys kept sorted; safe to read from any thread."""

    def __init__(self, disk: _Disk | None = None) -> None:
        self._disk = disk or _Disk()
        self._closed = False

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`, None where there is no row."""
        self._check_open()
        return list(map(self._disk.rows.get, keys))

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows with `start <= key < end` in key order, at most `limit`."""
        self._check_open()
        return self._scan(start, end, limit)

    def _scan(self, start: bytes, end: bytes, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
        left = -1 if limit is None else limit
        while left:
            size = _CHUNK if left < 0 else min(left, _CHUNK)
            rows, following = self._chunk(start, end, size)
            yield from rows
            if following is None:
                return
            left -= len(rows) if left > 0 else 0
            start = following
            self._check_open()

    def _chunk(self, start: bytes, end: bytes, size: int) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Up to `size` rows, and where to go on (None: the range is done)."""
        disk = self._disk
        rows: list[tuple[bytes, bytes]] = []
        with disk.lock:
            disk.sort()
            keys = disk.keys
            previous = None
            for i in range(bisect_left(keys, start), len(keys)):
                key = keys[i]
                if key >= end:
                    return rows, None
                value = disk.rows.get(key)
                if value is None or key == previous:  # deleted, or deleted and made again before a sort
                    continue
                if len(rows) == size:
                    return rows, key
                rows.append((key, value))
                previous = key
        return rows, None

    def apply(self, rows: Mapping[bytes, bytes | None], positions: Mapping[str, ChangelogPosition]) -> None:
        """Write rows (None deletes) and changelog positions in one atomic step."""
        self._check_open()
        disk = self._disk
        with disk.lock:
            known = disk.rows
            for key, value in rows.items():
                if value is None:
                    known.pop(key, None)
                else:
                    if key not in known:
                        disk.fresh.append(key)
                    known[key] = value
            disk.positions.update(positions)

    def positions(self) -> dict[str, ChangelogPosition]:
        """The stored changelog positions, by topic name."""
        self._check_open()
        return dict(self._disk.positions)

    def close(self) -> None:
        """Free the store; further calls fail."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            msg = "the store is closed"
            raise RuntimeError(msg)


class MemoryStoreFactory:
    """Opens memory stores; the factory is the disk, so what a crashed worker wrote is there for the next one."""

    def __init__(self) -> None:
        self._disks: dict[tuple[str, int], _Disk] = {}
        self._open: dict[tuple[str, int], MemoryStore] = {}

    def open(self, role: str, partition: int) -> MemoryStore:
        """Open, or make, the store of one partition; a handle that a crash left open is closed."""
        where = (role, partition)
        left = self._open.get(where)
        if left is not None:
            left.close()
        store = self._open[where] = MemoryStore(self._disks.setdefault(where, _Disk()))
        return store

    def look(self, role: str, partition: int) -> MemoryStore:
        """What is stored of one partition; whoever has it open keeps it open."""
        return MemoryStore(self._disks.setdefault((role, partition), _Disk()))

    def wipe(self, role: str, partition: int) -> None:
        """Delete the store of one partition."""
        left = self._open.pop((role, partition), None)
        if left is not None:
            left.close()
        self._disks.pop((role, partition), None)
