"""Chunks: items of one await whose author's code runs in one job, and who is to blame when it breaks."""

from __future__ import annotations

from schemas import limits

CHUNK_S_SHORT = 0.050
CHUNK_S_LONG = 0.250
"""A chunk of suffixes aims between these: long enough to be worth a thread's turn, short enough to free its slots soon."""

WAITING_ITEM_S = 0.002
"""An item that takes longer is taken to wait for something rather than to compute."""


class ChunkSize:
    """How many items the next suffix job runs, and how many jobs side by side, from how long the last ones took."""

    def __init__(self) -> None:
        self.items = 8
        self.jobs_max = 2

    def one_at_a_time(self) -> None:
        """Whoever ends the step process must be alone in it to be known."""
        self.items = self.jobs_max = 1

    def learn(self, items: int, seconds: float) -> None:
        """Adapt to a chunk that ran."""
        if seconds < CHUNK_S_SHORT and items >= self.items:
            self.items = min(self.items * 2, limits.CHUNK_ITEMS_MAX)
        elif seconds > CHUNK_S_LONG:
            self.items = max(self.items // 2, 1)
        # Functions that compute share one interpreter lock: more threads only get in each other's way. Functions that wait do not.
        self.jobs_max = limits.POOL_THREADS if seconds / max(items, 1) > WAITING_ITEM_S else 2
