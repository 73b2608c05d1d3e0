"""The overlay: rows as the open batch sees them, over the committed ones (DESIGN 6, steps 1, 2 and 6)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from state.folding import Row, decode_row, encode_row
from state.table import ChangelogPosition, Store


class Overlay:
    """Read-your-writes over a store; nothing reaches the store before `apply`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.staged: dict[bytes, Row] = {}
        self._read: dict[bytes, Any] = {}

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Read the rows that a batch names in one go."""
        wanted = [key for key in keys if key not in self._read]
        for key, value in zip(wanted, self.store.get_many(wanted), strict=True):
            self._read[key] = None if value is None else decode_row(key, value)

    def get(self, key: bytes) -> Any:  # noqa: ANN401 - the key says which record
        """The record of a row, or None."""
        record = self.staged.get(key)
        if record is not None:
            return record
        if key not in self._read:
            self.prefetch((key,))
        return self._read[key]

    def put(self, key: bytes, record: Row) -> None:
        """Make `record` the row, for this batch."""
        self.staged[key] = record

    def encoded(self) -> dict[bytes, bytes]:
        """The changed rows as they will be stored."""
        return {key: encode_row(record) for key, record in self.staged.items()}

    def drop(self) -> None:
        """Forget the batch."""
        self.staged.clear()
        self._read.clear()

    def apply(self, rows: dict[bytes, bytes], positions: dict[str, ChangelogPosition]) -> None:
        """Make the batch the committed state, in one atomic write."""
        self.store.apply(rows, positions)
        self.drop()
