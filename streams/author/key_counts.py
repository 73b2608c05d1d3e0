"""Which how-many-th item with equal key fields an item of a stream is (`topologies.pipeline.items`).

Theory of operation. A stream is read in order, from item 0 on whenever it is opened, so counting where it is read gives the same numbers after
any restart. 16 bytes of a digest stand for a key; they go when the stream has ended or nobody reads it any more.

`KeyBudget` is what all streams of a worker may keep in memory. A stream that gets no more of it goes on in a temporary database: on disk as soon as
that is large, slower by some microseconds an item, and gone with its process. So no stream ever waits for another one to end.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading

from schemas import limits

BLOCK = 4_096
"""Keys that a stream asks the budget for at a time."""

CACHE_BYTES = 32 * 1_024 * 1_024
"""Of a temporary database that are kept in memory."""


class KeyBudget:
    """Keys that all streams of a worker may keep in memory; safe to ask from many threads."""

    def __init__(self) -> None:
        self._left = limits.COUNTED_KEYS_MAX
        self._lock = threading.Lock()

    def take(self) -> int:
        """Room for some more keys; 0: there is none."""
        with self._lock:
            taken = min(BLOCK, self._left)
            self._left -= taken
        return taken

    def give_back(self, count: int) -> None:
        """Room that nobody uses any more."""
        with self._lock:
            self._left += count


class KeyCounts:
    """The keys of one stream so far; used by one thread at a time."""

    def __init__(self, budget: KeyBudget) -> None:
        self._budget = budget
        self._room = 0
        self._seen: set[bytes] = set()
        self._repeated: dict[bytes, int] = {}
        self._spilled: sqlite3.Connection | None = None

    @property
    def is_spilled(self) -> bool:
        """Whether it went on in a temporary database."""
        return self._spilled is not None

    def number(self, key: str) -> int:
        """1 for the first item with this key, 2 for the second one, and so on."""
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        seen = self._seen
        is_new = self._spilled is None and digest not in seen
        if is_new and (len(seen) + len(self._repeated) < self._room or self._grow()):
            seen.add(digest)
            return 1
        return self._again(digest)

    def _again(self, digest: bytes) -> int:
        if self._spilled is not None:
            return self._count_spilled(self._spilled, digest)
        number = self._repeated[digest] = self._repeated.get(digest, 1) + 1
        return number

    def _grow(self) -> bool:
        """Get more room, or spill."""
        taken = self._budget.take()
        self._room += taken
        if taken:
            return True
        self._spilled = self._spill()
        return False

    def _spill(self) -> sqlite3.Connection:
        """Everything so far, in a database without a name: it has no file that could stay behind."""
        database = sqlite3.connect("", check_same_thread=False, isolation_level=None)
        database.execute("PRAGMA journal_mode = OFF")
        database.execute(f"PRAGMA cache_size = {-CACHE_BYTES // 1_024}")
        database.execute("CREATE TABLE keys (digest BLOB PRIMARY KEY, count INTEGER NOT NULL) WITHOUT ROWID")
        database.execute("BEGIN")
        repeated = self._repeated
        rows = ((digest, repeated.get(digest, 1)) for digest in self._seen)
        database.executemany("INSERT INTO keys VALUES (?, ?)", rows)
        self._forget()
        return database

    @staticmethod
    def _count_spilled(database: sqlite3.Connection, digest: bytes) -> int:
        count: int
        (count,) = database.execute(
            "INSERT INTO keys VALUES (?, 1) ON CONFLICT DO UPDATE SET count = count + 1 RETURNING count", (digest,)
        ).fetchone()
        return count

    def _forget(self) -> None:
        self._seen, self._repeated = set(), {}
        self._budget.give_back(self._room)
        self._room = 0

    def close(self) -> None:
        """Nobody counts any more."""
        self._forget()
        if self._spilled is not None:
            self._spilled.close()
            self._spilled = None
