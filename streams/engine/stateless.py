"""The parts of a `streams.engine.task.Task` that need no rows: what ingress and continuation tasks have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from schemas import limits
from streams.engine.pool import Finished
from streams.engine.task import Event, Outputs
from streams.log.seam import TopicPartition


class StatelessTask:
    """The parts of a `streams.engine.task.Task` that need no rows."""

    def __init__(self, inputs: tuple[TopicPartition, ...]) -> None:
        self.inputs = inputs
        self.ready: deque[Event] = deque()
        self.bytes = 0
        """Of records that are not decided yet."""

    def restore(self, budget_s: float) -> bool:
        """Nothing to restore."""
        del budget_s
        return True

    def start(self) -> None:
        """Nothing to take up."""

    def finished(self, finished: Finished) -> None:
        """No local work."""

    def events(self, room: int) -> list[Event]:
        """Records in order."""
        taken = [self.ready.popleft() for _ in range(min(room, len(self.ready)))]
        self.bytes -= sum(event.record.size for event in taken if event.record is not None)
        return taken

    def has_work(self) -> bool:
        """Whether records wait."""
        return bool(self.ready)

    def is_full(self) -> bool:
        """Whether reading should wait."""
        return len(self.ready) > 2 * limits.BATCH_RECORDS_MAX or self.bytes > limits.INBOX_BYTES_MAX

    def next_due_ms(self) -> int | None:
        """No timers."""
        return None

    def prefetch(self, events: Sequence[Event]) -> None:
        """No rows."""

    def settle(self, outputs: Outputs) -> None:
        """Nothing follows."""

    def changes(self) -> Mapping[bytes, bytes | None]:
        """No rows."""
        return {}

    def changelog_of(self, key: bytes) -> tuple[TopicPartition, bytes]:
        """No rows."""
        raise AssertionError(key)

    def apply(self, rows: Mapping[bytes, bytes | None], ends: Mapping[TopicPartition, int]) -> None:
        """No rows."""

    def release(self) -> None:
        """No local work."""

    def drop(self) -> None:
        """Nothing is kept but the events, which the loop has."""

    def close(self) -> None:
        """Nothing to free."""
