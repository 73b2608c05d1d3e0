"""The rows of one core task: as its open batch sees them, and, for jobs on the pool, as they are committed.

Theory of operation. Only the loop's thread reads and changes the overlay. Jobs read what is committed, under a lock that `close` takes too:
a store is never closed under a reader, and a job that comes later gets `TaskClosed` and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from schemas.errors import KawaitError
from state.execution import ExecutionRecord
from state.folding import decode_row
from state.interaction import InteractionRecord
from state.item import ItemRecord
from state.keys import execution_key, interaction_key, item_key, unit_key
from state.tables.overlay import Overlay
from state.tables.store import Store, StoreFactory
from state.unit import UnitRecord


class TaskClosed(KawaitError):
    """The partition was given up while a job of it ran; the job ends."""


class PartitionRows:
    """Store and overlay of one partition."""

    def __init__(self, stores: StoreFactory, partition: int) -> None:
        self.store: Store = stores.open("core", partition)
        self.overlay = Overlay(self.store)
        self.is_closing = False
        self._stores = stores
        self._partition = partition
        self._reading = threading.Lock()

    def reopen(self) -> Store:
        """An empty store in place of one that cannot be trusted."""
        self.store.close()
        self._stores.wipe("core", self._partition)
        self.store = self._stores.open("core", self._partition)
        self.overlay = Overlay(self.store)
        return self.store

    def close(self) -> None:
        """Close the store once no job reads it."""
        self.is_closing = True
        with self._reading:
            self.store.close()

    # --- as the batch sees them --------------------------------------------------------------------------------------------------------

    def execution(self, execution_id: str) -> ExecutionRecord | None:
        """An execution, or None."""
        found: ExecutionRecord | None = self.overlay.get(execution_key(execution_id))
        return found

    def unit(self, unit_id: str | None) -> UnitRecord | None:
        """A unit, or None."""
        found: UnitRecord | None = self.overlay.get(unit_key(unit_id)) if unit_id else None
        return found

    def interaction(self, unit_id: str, item_index: int | None) -> InteractionRecord | None:
        """An interaction, or None."""
        found: InteractionRecord | None = self.overlay.get(interaction_key(unit_id, item_index))
        return found

    def item(self, unit_id: str, item_index: int) -> ItemRecord | None:
        """An item, or None."""
        found: ItemRecord | None = self.overlay.get(item_key(unit_id, item_index))
        return found

    # --- as they are committed ---------------------------------------------------------------------------------------------------------

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, Any]]:
        """On the loop's thread: committed rows of a span, in key order, with their keys."""
        for key, value in self.store.scan(start, end, limit):
            yield key, decode_row(key, value)

    def committed(self, keys: list[bytes]) -> list[Any]:
        """On the pool: committed rows in the order of `keys`, None where there is none.

        Raises:
            TaskClosed: the partition was given up.
        """
        hot = self.overlay.hot.get
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
