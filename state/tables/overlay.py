"""The overlay: rows as the open batch sees them, over the committed ones (DESIGN 6, steps 1, 2 and 6)."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable
from typing import Any

from typing_extensions import override

from state.execution import ExecutionRecord
from state.folding import Row, decode_row, encode_row
from state.interaction import InteractionRecord
from state.item import ItemRecord, ItemStatus
from state.keys import execution_key, interaction_key, item_key, unit_key
from state.tables.store import ChangelogPosition, Store
from state.unit import UnitRecord

HOT_ROWS_MAX = 20_000
"""Committed interactions kept decoded: a window's worth, so that an answer costs no read. Beyond it, older ones are read again."""

_UNREAD: Any = object()
_SUCCEEDED = ItemStatus.SUCCEEDED


class HotRows:
    """Committed interactions that are still on their way, decoded; a cache of the store, bounded, safe to read from any thread."""

    def __init__(self) -> None:
        self._young: dict[bytes, InteractionRecord] = {}
        self._old: dict[bytes, InteractionRecord] = {}
        """What was young before; forgotten all at once, as finding the oldest row takes long in a dictionary that shrinks in front."""

    def get(self, key: bytes) -> InteractionRecord | None:
        """The committed record, or None when it is not kept here."""
        return self._young.get(key) or self._old.get(key)

    def put(self, key: bytes, record: InteractionRecord) -> None:
        """Keep what was committed."""
        if len(self._young) >= HOT_ROWS_MAX // 2:
            self._old, self._young = self._young, {}
        self._young[key] = record

    def discard(self, key: bytes) -> None:
        """Its item is done."""
        self._young.pop(key, None)
        self._old.pop(key, None)


class RowView:
    """Rows by what they are about."""

    def get(self, key: bytes) -> Any:
        """The record of a row, or None."""
        raise NotImplementedError

    def execution(self, execution_id: str) -> ExecutionRecord | None:
        """An execution, or None."""
        found: ExecutionRecord | None = self.get(execution_key(execution_id))
        return found

    def unit(self, unit_id: str | None) -> UnitRecord | None:
        """A unit, or None."""
        found: UnitRecord | None = self.get(unit_key(unit_id)) if unit_id else None
        return found

    def interaction(self, unit_id: str, item_index: int | None) -> InteractionRecord | None:
        """An interaction, or None."""
        found: InteractionRecord | None = self.get(interaction_key(unit_id, item_index))
        return found

    def item(self, unit_id: str, item_index: int) -> ItemRecord | None:
        """An item, or None."""
        found: ItemRecord | None = self.get(item_key(unit_id, item_index))
        return found


class Overlay(RowView):
    """The rows as the open batch sees them: read-your-writes over a store; nothing reaches the store before `apply`."""

    def __init__(self, store: Store, hot: HotRows) -> None:
        self._store = store
        self._hot = hot
        self._staged: dict[bytes, Row | None] = {}
        """Changed rows; None: deleted."""
        self._read: dict[bytes, Any] = {}

    def lie_over(self, store: Store) -> None:
        """Lie over another store from now on; no batch is open."""
        self._store = store

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Read the rows that a batch names in one go."""
        read, hot = self._read, self._hot.get
        wanted: list[bytes] = []
        for key in keys:
            if key not in read:
                known = hot(key)
                if known is None:
                    wanted.append(key)
                else:
                    read[key] = known
        if not wanted:
            return
        for key, value in zip(wanted, self._store.get_many(wanted), strict=True):
            read[key] = None if value is None else decode_row(key, value)

    def assume_absent(self, keys: Iterable[bytes]) -> None:
        """Rows that are known not to exist need no read."""
        known = self._read.setdefault
        for key in keys:
            known(key, None)

    @override
    def get(self, key: bytes) -> Any:
        """The record of a row, or None."""
        record = self._staged.get(key, _UNREAD)
        if record is _UNREAD:
            record = self._read.get(key, _UNREAD)
        if record is _UNREAD:
            self.prefetch((key,))
            record = self._read[key]
        return record

    def put(self, key: bytes, record: Row) -> None:
        """Make `record` the row, for this batch."""
        self._staged[key] = record

    def delete(self, keys: Iterable[bytes]) -> None:
        """Delete rows; only retention does."""
        self._staged.update(dict.fromkeys(keys))

    def encoded(self) -> dict[bytes, bytes | None]:
        """The changed rows as they will be stored."""
        return {key: None if record is None else encode_row(record) for key, record in self._staged.items()}

    def changes(self) -> ItemsView[bytes, Row | None]:
        """The changed rows and their records; None: deleted."""
        return self._staged.items()

    def drop(self) -> None:
        """Forget the batch."""
        self._staged.clear()
        self._read.clear()

    def apply(self, rows: dict[bytes, bytes | None], positions: dict[str, ChangelogPosition]) -> None:
        """Make the batch the committed state, in one atomic write."""
        self._store.apply(rows, positions)
        self._keep_hot()
        self.drop()

    def _keep_hot(self) -> None:
        hot = self._hot
        for key, record in self._staged.items():
            if type(record) is InteractionRecord:
                hot.put(key, record)
            elif type(record) is ItemRecord and record.status is _SUCCEEDED:
                hot.discard(interaction_key(record.unit_id, record.item_index))
            elif record is None:
                hot.discard(key)


class WrongAssumption(AssertionError):
    """A row was taken to be new, and is there: it would have been overwritten."""


class CheckedOverlay(Overlay):
    """An overlay that looks whether what it is told is true; for the test driver and the simulator, as it costs the reads that it is told to spare."""

    @override
    def assume_absent(self, keys: Iterable[bytes]) -> None:
        """Rows that are said not to exist.

        Raises:
            WrongAssumption: one of them is there.
        """
        told = list(keys)
        for key, value in zip(told, self._store.get_many(told), strict=True):
            if value is not None:
                raise WrongAssumption(f"{key!r} was taken to be a new row, and is there")
        super().assume_absent(told)
