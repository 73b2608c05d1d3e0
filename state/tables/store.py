"""The table seam: one ordered store for each owned partition, written only after a commit (DESIGN 6, step 6).

Two implementations, one contract suite: `MemoryStore` here and `RocksStore` in `state.tables.rocksdb`. A store holds the rows of all four
tables under prefixed keys (see `state.keys`) and the changelog positions it is true up to; both are written in one atomic step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import msgspec


class ChangelogPosition(msgspec.Struct, frozen=True):
    """How far a store has followed one changelog partition.

    Attributes:
        topic_id: The topic's id when it was read; another id means another topic.
        offset: The next changelog offset that the store has not applied.
        time_ms: When the position was stored; too old a store is rebuilt (deletes may have been compacted away).
    """

    topic_id: str
    offset: int
    time_ms: int


class Store(Protocol):
    """The rows of one partition. Reads may come from any thread; `apply` only from the owner."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Values in the order of `keys`, None where there is no row."""

    def scan(self, start: bytes, end: bytes, limit: int | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows with `start <= key < end` in key order, at most `limit`; a consistent snapshot is not promised."""

    def apply(self, rows: Mapping[bytes, bytes | None], positions: Mapping[str, ChangelogPosition]) -> None:
        """Write rows (None deletes) and changelog positions (by topic name) in one atomic step."""

    def positions(self) -> dict[str, ChangelogPosition]:
        """The stored changelog positions, by topic name."""

    def close(self) -> None:
        """Free the store; further calls fail."""


class StoreFactory(Protocol):
    """Opens the stores of a worker."""

    def open(self, role: str, partition: int) -> Store:
        """Open, or make, the store of one partition. One that cannot be read is wiped and starts empty."""

    def wipe(self, role: str, partition: int) -> None:
        """Delete the store of one partition; it must be closed."""
