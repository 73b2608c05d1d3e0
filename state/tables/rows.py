"""The committed rows of one partition, and the open batch over them.

Theory of operation. Only the loop's thread reads and changes the batch. Jobs on the pool read what is committed, under a lock that `close`
takes too: a store is never closed under a reader, and a job that comes later gets `TaskClosed` and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from typing_extensions import override

from schemas.errors import KawaitError
from state.folding import decode_row
from state.tables.overlay import HotRows, Overlay, RowView
from state.tables.store import Store, StoreFactory

MakeOverlay = Callable[[Store, HotRows], Overlay]


class TaskClosed(KawaitError):
    """The partition was given up while a job of it ran; the job ends."""


class PartitionRows(RowView):
    """The committed rows of one partition. What `RowView` offers is for the loop's thread; it leaves no trace in the open batch."""

    def __init__(self, stores: StoreFactory, partition: int, make_overlay: MakeOverlay = Overlay) -> None:
        self.store: Store = stores.open("core", partition)
        self._hot = HotRows()
        self.batch = make_overlay(self.store, self._hot)
        """The same rows as the open batch sees them."""
        self.is_closing = False
        self._stores = stores
        self._partition = partition
        self._reading = threading.Lock()

    def reopen(self) -> Store:
        """An empty store in place of one that cannot be trusted."""
        self.store.close()
        self._stores.wipe("core", self._partition)
        self.store = self._stores.open("core", self._partition)
        self.batch.lie_over(self.store)
        return self.store

    def close(self) -> None:
        """Close the store once no job reads it."""
        self.is_closing = True
        with self._reading:
            self.store.close()

    # --- on the loop's thread ------------------------------------------------------------------------------------------------------------

    @override
    def get(self, key: bytes) -> Any:
        """The committed record of a row, or None."""
        found: Any = self._hot.get(key)
        if found is not None:
            return found
        (value,) = self.store.get_many((key,))
        return None if value is None else decode_row(key, value)

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, Any]]:
        """Committed rows of a span, in key order, with their keys."""
        for key, value in self.store.scan(start, end, limit):
            yield key, decode_row(key, value)

    def keys(self, start: bytes, end: bytes, limit: int) -> Iterator[bytes]:
        """Keys of committed rows of a span, in order, at most `limit`."""
        return (key for key, _ in self.store.scan(start, end, limit))

    # --- on the pool ---------------------------------------------------------------------------------------------------------------------

    def committed(self, keys: list[bytes]) -> list[Any]:
        """Committed records in the order of `keys`, None where there is none.

        Raises:
            TaskClosed: the partition was given up.
        """
        hot = self._hot.get
        found = [hot(key) for key in keys]
        missing = [key for key, row in zip(keys, found, strict=True) if row is None]
        if not missing:
            return found
        with self._reading:
            if self.is_closing:
                raise TaskClosed
            values = dict(zip(missing, self.store.get_many(missing), strict=True))
        return [
            row if row is not None else None if (value := values[key]) is None else decode_row(key, value)
            for key, row in zip(keys, found, strict=True)
        ]
