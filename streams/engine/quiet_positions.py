"""Positions that no record moved: past control markers and aborted records, at the end of a quiet partition (DECISIONS 6).

A transaction's positions follow its records. Where nothing comes behind the last one, the marker that ended it would stay uncommitted for
ever: whoever asks how far the group has come would never see it at the end, and once retention has removed the marker, the committed
position would lie before the log start, as if work had been deleted unread.
"""

from __future__ import annotations

from streams.clock import Clock
from streams.engine.owned_tasks import OwnedTasks
from streams.log.seam import GroupConsumer, TopicPartition


class QuietPositions:
    """Finds positions to commit alone, at most once in `pace_s`."""

    def __init__(self, owned: OwnedTasks, clock: Clock, pace_s: float) -> None:
        self._owned = owned
        self._clock = clock
        self._pace_s = pace_s
        self._next_s = clock.monotonic_s()

    def moved(self, consumer: GroupConsumer) -> dict[TopicPartition, int]:
        """How far the consumer is beyond what is committed, for tasks that have decided all that they were given."""
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return {}
        self._next_s = now_s + self._pace_s
        known = self._owned.positions
        read = {
            at: consumer.position(at) for task in self._owned.all_running if not task.is_waiting() for at in task.inputs
        }
        return {at: position for at, position in read.items() if position > known[at]}
