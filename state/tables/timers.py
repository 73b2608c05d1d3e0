"""Timers: an index of what is due when, derived from rows and rebuilt from them (DESIGN 6).

Kept in buckets of 100 ms, so that arming, disarming and asking cost the same however many there are, and memory follows the armed ones.
"""

from __future__ import annotations

import heapq
from typing import Any

from state.execution import ExecutionRecord, ExecutionStatus
from state.interaction import InteractionRecord, InteractionStatus
from state.item import ItemRecord, ItemStatus

BUCKET_MS = 100

_PENDING = InteractionStatus.PENDING
_ITEM_PENDING = ItemStatus.PENDING


def due_of(row: Any) -> int | None:
    """When a row needs attention by itself, or None."""
    # By identity: to ask a struct for its class with `isinstance` takes as long as the rest of this.
    kind = type(row)
    if kind is InteractionRecord:
        return row.deadline_ms if row.status is _PENDING else None
    if kind is ItemRecord:
        return row.due_ms if row.status is _ITEM_PENDING else None
    if kind is ExecutionRecord:
        return row.due_ms if row.status in (ExecutionStatus.WAIT_RETRY, ExecutionStatus.RUNNING) else None
    return None


class TimerIndex:
    """What is due when, by row key."""

    def __init__(self) -> None:
        self._due: dict[bytes, int] = {}
        self._buckets: dict[int, dict[bytes, None]] = {}
        """Keys in the order in which they were armed, so that equal runs ring in equal order; a set's order differs by process."""
        self._heap: list[int] = []

    def __len__(self) -> int:
        return len(self._due)

    def arm(self, key: bytes, due_ms: int | None) -> None:
        """Set, move or (None) remove the timer of a row."""
        before = self._due.get(key)
        if before == due_ms:
            return
        if before is not None:
            self._remove(key, before)
        if due_ms is not None:
            self._due[key] = due_ms
            bucket = due_ms // BUCKET_MS
            keys = self._buckets.get(bucket)
            if keys is None:
                keys = self._buckets[bucket] = {}
                heapq.heappush(self._heap, bucket)
            keys[key] = None

    def _remove(self, key: bytes, due_ms: int) -> None:
        del self._due[key]
        bucket = due_ms // BUCKET_MS
        keys = self._buckets[bucket]
        del keys[key]
        if not keys:
            del self._buckets[bucket]  # its heap entry is skipped when it comes up

    def armed(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """Armed keys of one table, with their due times."""
        return [(key, due_ms) for key, due_ms in self._due.items() if key.startswith(prefix)]

    def next_ms(self) -> int | None:
        """When the next timer may be due (never later than it is), or None."""
        while self._heap and self._heap[0] not in self._buckets:
            heapq.heappop(self._heap)
        return self._heap[0] * BUCKET_MS if self._heap else None

    def is_due(self, key: bytes, at_ms: int) -> bool:
        """Whether the row's timer is due at a moment."""
        due_ms = self._due.get(key)
        return due_ms is not None and due_ms <= at_ms

    def any_due(self, at_ms: int) -> bool:
        """Whether one is due by a moment."""
        first_ms = self.next_ms()
        if first_ms is None or first_ms > at_ms:
            return False
        if first_ms + BUCKET_MS <= at_ms:
            return True
        return any(self._due[key] <= at_ms for key in self._buckets[first_ms // BUCKET_MS])

    def count_due(self, now_ms: int) -> int:
        """How many are due, by buckets."""
        return sum(len(keys) for bucket, keys in self._buckets.items() if bucket * BUCKET_MS <= now_ms)

    def due(self, now_ms: int, limit: int) -> list[bytes]:
        """At most `limit` keys that are due, earliest buckets first; they stay armed until their row says otherwise."""
        found: list[bytes] = []
        for bucket in sorted(bucket for bucket in self._buckets if bucket * BUCKET_MS <= now_ms):
            found += [key for key in self._buckets[bucket] if self._due[key] <= now_ms]
            if len(found) >= limit:
                return found[:limit]
        return found
